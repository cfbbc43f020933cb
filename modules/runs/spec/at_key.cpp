module;
#include <string>
#include <utility>
module tessera.runs;

import tessera.base;
namespace tessera::runs {

namespace {

/// The key that the error names first, where it is `key` or one of its own ("data.validation" for
/// "data"), which is taken out of the error; else `key`.
std::string take_key(const std::string& key, ErrorFields& fields) {
  std::string& text = fields.thing.empty() ? fields.wrong : fields.thing;
  std::string named = text.substr(0, text.find(": "));
  const bool whole = named.size() == text.size();
  if (whole != !fields.thing.empty() || (named != key && !named.starts_with(key + "."))) {
    return key;
  }
  text.erase(0, whole ? text.size() : named.size() + 2);
  return named;
}

}  // namespace

void fail_at_key(const RunSpec& config, const std::string& key, const Error& error) {
  if (error.kind() != ErrorKind::input || !error.fields().where.empty()) {
    throw;
  }
  ErrorFields fields = error.fields();
  fields.where = config.place(take_key(key, fields));
  fail_input(std::move(fields));
}

}  // namespace tessera::runs
