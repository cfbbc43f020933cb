export module tessera.app.bench:dispatch_rows;

import tessera.app.base;

export namespace tessera::app {

/// One small program on tensors of 8 x 8, in two forms: on plain tensors, and on distributed ones
/// that have the same extents on the rank, so that the kernels do the same work.
struct DispatchRow {
  std::string name;
  std::string mesh;
  int calls;  // that make a batch long enough to be timed
  std::function<void()> plain;
  std::function<void()> distributed;
};

/// Rows that `tessera bench dispatch` times, and that docs/performance-calls.md has the
/// instruction counts of.
std::vector<DispatchRow> dispatch_rows();

}  // namespace tessera::app
