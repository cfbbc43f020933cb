module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>
module tessera.app.tools;

import tessera.base;
import tessera.plugin;
import tessera.plugin_suite;
import tessera.app.base;
import :plugin_checks;

namespace tessera::app {

bool check_plugin(const plugin::CheckReport& report, bool with_notes) {
  using State = plugin_suite::SuiteResult::State;
  bool good = true;
  for (const plugin::Offer& offer : report.registered) {
    std::vector<plugin_suite::SuiteResult> results =
        plugin_suite::run_suite({report.found.file, offer.kind, offer.name});
    const auto passed =
        std::ranges::count(results, State::passed, &plugin_suite::SuiteResult::state);
    std::string text =
        results.empty()
            ? fmt::format("  {} {}: there are no checks of this kind\n", offer.kind, offer.name)
            : fmt::format("  {} {}: {} of {} checks passed\n", offer.kind, offer.name, passed,
                          results.size());
    for (plugin_suite::SuiteResult& result : results) {
      std::ranges::replace(result.text, '\n', ' ');
      if (result.state != State::passed) {
        text += fmt::format("    {} {}: {}\n",
                            result.state == State::failed ? "failed:" : "not tried:", result.check,
                            result.text);
      }
      for (std::string note : with_notes ? result.notes : std::vector<std::string>{}) {
        std::ranges::replace(note, '\n', ' ');
        text += fmt::format("    deviation: {}\n", note);
      }
      good = good && result.state != State::failed;
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return good;
}

}  // namespace tessera::app
