// Communication between ranks that save together.
module tessera.checkpoint:group_actions;

import tessera.base;
import tessera.collective;

namespace tessera::checkpoint_detail {

/// The world's ranks as a group of this name.
collective::Communicator& group_named(const char* name);
/// Every rank's text, in rank order, on rank 0; nothing on the others.
std::vector<std::string> gather_texts(collective::Communicator& group, const std::string& text);
/// Rank 0's text on every rank.
std::string broadcast_text(collective::Communicator& group, const std::string& text);
/// Calls `act` on every rank. If it throws on any rank, all ranks throw the Error of the first one.
void act_together(collective::Communicator& group, const std::function<void()>& act);

}  // namespace tessera::checkpoint_detail
