export module tessera.calls:first_error;

import tessera.base;

export namespace tessera::collective {

/// The error that stopped a run: the first that a rank published.
struct FirstError {
  int rank = -1;  ///< -1: the launcher
  ErrorKind kind = ErrorKind::run;
  std::int64_t step = -1;  ///< -1: before the first step
  std::string where;       ///< what the rank was doing, from set_progress; may be empty
  std::string text;
};

/// "rank 1, step 12, model.layers.3: text".
std::string to_string(const FirstError& error);

}  // namespace tessera::collective
