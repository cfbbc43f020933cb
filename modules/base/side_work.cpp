module;
#include <fmt/format.h>

#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>
module tessera.base;

namespace tessera {
namespace {

struct Failures {
  std::mutex mutex;
  std::map<std::pair<SideWork, std::string>, std::string> texts;  // of the last attempts
};

Failures& failures() {
  static auto* const instance = new Failures;  // leaked: threads may end later than statics
  return *instance;
}

}  // namespace

bool try_side_work(SideWork kind, const std::string& thing, const std::function<void()>& act) {
  std::string text;
  try {
    act();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::interrupted) {
      throw;
    }
    text = error.what();
  } catch (const std::exception& error) {
    text = fmt::format("{}: {}", thing, error.what());
  }
  Failures& known = failures();
  const std::lock_guard lock(known.mutex);
  const std::pair key(kind, thing);
  if (text.empty()) {
    known.texts.erase(key);
    return true;
  }
  if (std::exchange(known.texts[key], text) != text) {
    log(LogLevel::warning, text + "; the run goes on");
  }
  return false;
}

std::vector<std::string> incomplete_outputs() {
  Failures& known = failures();
  const std::lock_guard lock(known.mutex);
  std::vector<std::string> things;
  for (const auto& [key, text] : known.texts) {
    if (key.first == SideWork::output) {
      things.push_back(key.second);
    }
  }
  return things;
}

}  // namespace tessera
