// Runs the rows of `tessera bench dispatch` for a tool that counts instructions, and prints which
// row and form each call of counted_calls() was, and how many calls of the row it made:
//   dispatch_cost
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

import tessera.app.bench;

/// What the tool counts: the calls, without start-up and the first ones, which fill the caches. By
/// its name.
extern "C" [[gnu::noinline]] void counted_calls(const std::function<void()>& run, int calls) {
  for (int i = 0; i < calls; ++i) {
    run();
  }
}

int main() {
  const std::vector<tessera::app::DispatchRow> rows = tessera::app::dispatch_rows();
  for (const tessera::app::DispatchRow& row : rows) {
    if (row.mesh != rows.front().mesh) {
      break;  // a mesh of more axes costs the same
    }
    // Enough that what happens once in many calls is seen as its share of one.
    const int calls = row.calls >= 1000 ? 200 : 20;
    for (const bool plain : {true, false}) {
      const std::function<void()>& run = plain ? row.plain : row.distributed;
      for (int i = 0; i < 20; ++i) {
        run();
      }
      counted_calls(run, calls);
      std::printf("%s: %s: %d\n", row.name.c_str(), plain ? "plain" : "distributed", calls);
    }
  }
  return 0;
}
