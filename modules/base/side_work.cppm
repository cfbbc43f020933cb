export module tessera.base:side_work;

import :standard;

export namespace tessera {

/// Work of a run besides training.
enum class SideWork {
  upkeep,  // nothing that was asked for is missing when it fails: old checkpoints stay
  output,  // something is: the run ends with exit code 1, after all else
};

/// Calls `act`, whose failure must not end the run: an Error or another exception becomes one
/// warning, and no further one as long as each attempt at `thing` fails in the same words. `act`
/// must not communicate with other ranks: those would wait for it. An Error of kind interrupted
/// passes. Returns whether `act` succeeded.
bool try_side_work(SideWork kind, const std::string& thing, const std::function<void()>& act);

/// The outputs of this process whose last attempt has failed.
std::vector<std::string> incomplete_outputs();

}  // namespace tessera
