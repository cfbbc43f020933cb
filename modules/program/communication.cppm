export module tessera.program:communication;

import tessera.base;
import :index;
import :instructions;

export namespace tessera::graph {

/// A call in which other ranks take part.
struct CommunicationCall {
  /// Text that all ranks of its group must have alike: operator, arguments, and type and number of
  /// elements of whole tensors. A rank's own shards, memory and numbers of tensors are not in it.
  std::string agreed = {};
  PlaceIndex place;
};

/// The calls of a program by their group ("ranks 0 1 named data"), in their order. Groups of one
/// rank are left out, and waits: ranks may wait at different places. Error: see require_lowered.
std::map<std::string, std::vector<CommunicationCall>> communication_of(const Program& program);

}  // namespace tessera::graph
