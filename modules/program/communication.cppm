export module tessera.program:communication;

import tessera.base;
import tessera.tensor;
import :index;
import :instructions;

export namespace tessera::graph {

/// A message from one rank to another one (send, receive_), by their numbers among all ranks.
struct ProgramMessage {
  bool sends = false;  // the program's rank; otherwise it receives
  int from = 0;
  int to = 0;
  std::int64_t tag = 0;
};
/// Nothing: the instruction is not a message.
std::optional<ProgramMessage> message_of(const Program& program, const Instruction& instruction);

/// A call in which other ranks take part.
struct CommunicationCall {
  /// Text that all ranks of its group must have alike: operator, arguments, and type and number of
  /// elements of whole tensors. A rank's own shards, memory and numbers of tensors are not in it.
  std::string agreed = {};
  PlaceIndex place;
};

/// The calls of a program by their group, in their order. Messages are calls of the group "FROM TO
/// named messages", by their tags: those that one rank sends must be those that the other one
/// receives, whatever the two do in between. Groups of one rank are left out, and waits: ranks may
/// wait at different places. Error: see require_lowered.
std::map<CallGroup, std::vector<CommunicationCall>> communication_of(const Program& program);
/// The call at this place, what the program has written for it, and what decides that it is made:
/// "section 'update', instruction 3 (%4: f32[2] = all_reduce(%2; ...) @ forward in a.b by
/// full_tensor), after guard 'skip' in module 'a' was 0".
std::string call_in_words(const Program& program, PlaceIndex place);

}  // namespace tessera::graph
