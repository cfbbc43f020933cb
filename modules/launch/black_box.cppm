module tessera.launch:black_box;

import tessera.base;
import tessera.ranks;

namespace tessera::collective {

/// Writes what the ranks of this machine did last into `folder`, a new file of JSON: the first
/// error, and of each rank its step, where it is, and its last calls. What
/// goes wrong is a warning. Nothing where the file was written before, by any rank of the machine.
void write_black_box(const std::string& folder, Control& control, const Region& region);

}  // namespace tessera::collective
