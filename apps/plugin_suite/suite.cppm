export module tessera.plugin_suite:suite;

import tessera.base;

// The conformance suites of `tessera plugin check`: what a plugin of each kind must do, besides
// being loadable.

export namespace tessera::plugin_suite {

/// Finding of one check.
struct SuiteResult {
  enum class State { passed, failed, not_tried } state = State::passed;
  std::string check;                    // "two ranks compute what one does"
  std::string text;                     // why it failed or was not tried
  std::vector<std::string> notes = {};  // what it has found out besides
};

/// A plugin's promise to its host: `kind` and `name` of what it provides.
struct SuiteSubject {
  std::string file;
  std::string kind;
  std::string name;
};

/// Runs the suite of the subject's kind in a process of its own. A check that kills its process, or
/// does not end within `limit`, has failed, and the ones after it are not run. A kind without a
/// suite has no results.
std::vector<SuiteResult> run_suite(
    const SuiteSubject& subject,
    std::chrono::milliseconds limit = std::chrono::milliseconds(60000));

/// One check: returns nothing when it holds, or why it does not; throws SkippedCheck.
struct SuiteCheck {
  std::string name;
  std::function<std::string()> run;
};
struct SkippedCheck {
  std::string why;
};

/// Says what a check is about to do, for the text of a failure that ends the process.
void trying(const std::string& what);
/// Adds to the notes of the check that is running.
void note(const std::string& what);

// The suites. The plugin is loaded by the process's host when they run.
std::vector<SuiteCheck> style_suite(const std::string& name);
std::vector<SuiteCheck> optimizer_suite(const std::string& name);
std::vector<SuiteCheck> model_suite(const std::string& name);
std::vector<SuiteCheck> device_suite(const std::string& name);
std::vector<SuiteCheck> collectives_suite(const std::string& name);
std::vector<SuiteCheck> operator_suite(const std::string& name);
std::vector<SuiteCheck> change_suite(const std::string& name);
std::vector<SuiteCheck> format_suite(const std::string& name);
std::vector<SuiteCheck> tokenizer_suite(const std::string& name);
std::vector<SuiteCheck> sink_suite(const std::string& name);
std::vector<SuiteCheck> source_suite(const std::string& name);
std::vector<SuiteCheck> transport_suite(const std::string& name);
std::vector<SuiteCheck> store_suite(const std::string& name);

/// The first findings of many, as the text of a check; empty: there are none.
std::string some_of(const std::vector<std::string>& findings);

/// The largest |a - b| / (1 + |b|); infinity where the counts differ or a value is not a number.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace tessera::plugin_suite
