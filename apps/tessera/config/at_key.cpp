module;
#include <string>
#include <utility>
module tessera.app.config;

import tessera.base;
namespace tessera::app {

void fail_at_key(const Config& config, const std::string& key, const Error& error) {
  if (error.kind() != ErrorKind::input || !error.fields().where.empty()) {
    throw;
  }
  ErrorFields fields = error.fields();
  fields.where = config.place(key);
  if (fields.thing == key) {
    fields.thing.clear();
  } else if (fields.thing.empty() && fields.wrong.starts_with(key + ": ")) {
    fields.wrong.erase(0, key.size() + 2);
  }
  fail_input(std::move(fields));
}

}  // namespace tessera::app
