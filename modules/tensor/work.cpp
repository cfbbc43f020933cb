module;
#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>
module tessera.tensor;

import tessera.base;
import :dispatch;
import :path;
import :work;

namespace tessera {
namespace {

std::string& decision() {
  thread_local std::string last;
  return last;
}

}  // namespace

const std::string* current_operation() { return path_state().operation; }

OperationScope::OperationScope(const std::string& name) : before_(path_state().operation) {
  path_state().operation = before_ == nullptr ? &name : before_;
}
OperationScope::~OperationScope() { path_state().operation = before_; }

WorkScope::WorkScope(std::function<std::string()> say)
    : say_(std::move(say)), before_(std::exchange(path_state().work, &say_)) {}
WorkScope::~WorkScope() { path_state().work = before_; }

void note_decision(std::string text) { decision() = std::move(text); }

std::string work_in_words() {
  std::string text;
  const auto add = [&](const char* between, const std::string& more) {
    text += (text.empty() ? "" : between) + more;
  };
  if (const auto* const work = path_state().work) {
    add("", "in " + (*work)());
  } else {
    if (const std::string* const operation = current_operation()) {
      add("", "in " + *operation);
    }
    if (const std::string* const module = current_module(); module != nullptr) {
      add(", ", module->empty() ? "in the model" : fmt::format("in module '{}'", *module));
    }
  }
  if (!decision().empty()) {
    add("; ", "the last decision: " + decision());
  }
  return text;
}

}  // namespace tessera
