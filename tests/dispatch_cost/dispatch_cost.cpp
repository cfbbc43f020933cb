// Runs one row of `tessera bench dispatch` a number of times, for a tool that counts instructions:
//   dispatch_cost ROW plain|distributed CALLS
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "commands/dispatch_rows.hpp"

int main(int count, char** arguments) {
  if (count == 4) {
    for (const tessera::app::DispatchRow& row : tessera::app::dispatch_rows()) {
      if (row.name == arguments[1]) {
        const bool plain = std::string("plain") == arguments[2];
        const std::function<void()>& run = plain ? row.plain : row.distributed;
        for (int calls = std::atoi(arguments[3]); calls > 0; --calls) {
          run();
        }
        return 0;
      }
    }
  }
  std::fputs("dispatch_cost: expected ROW plain|distributed CALLS, a row of `bench dispatch`\n",
             stderr);
  return 2;
}
