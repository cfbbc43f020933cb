module;
#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>
module tessera.tensor;

import tessera.base;
import :dispatch;
import :work;

namespace tessera {
namespace {

thread_local constinit const std::string* operation = nullptr;
thread_local constinit const std::function<std::string()>* working = nullptr;

std::string& decision() {
  thread_local std::string last;
  return last;
}

}  // namespace

const std::string* current_operation() { return operation; }

OperationScope::OperationScope(const std::string& name)
    : before_(std::exchange(operation, operation == nullptr ? &name : operation)) {}
OperationScope::~OperationScope() { operation = before_; }

WorkScope::WorkScope(std::function<std::string()> say)
    : say_(std::move(say)), before_(std::exchange(working, &say_)) {}
WorkScope::~WorkScope() { working = before_; }

void note_decision(std::string text) { decision() = std::move(text); }

std::string work_in_words() {
  std::string text;
  const auto add = [&](const char* between, const std::string& more) {
    text += (text.empty() ? "" : between) + more;
  };
  if (working != nullptr) {
    add("", "in " + (*working)());
  } else {
    if (operation != nullptr) {
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
