module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
module tessera.calls;

import tessera.base;
import :call;
import :forms;

namespace tessera::collective {

namespace {

/// Names that this process knows. Bounded: later ones are not kept.
class NameTable {
 public:
  std::int64_t add(std::string_view name) {
    const auto identity =
        static_cast<std::int64_t>(std::hash<std::string_view>{}(name)&std::size_t{0x7fffffff});
    const std::scoped_lock lock(mutex_);
    if (names_.size() < most) {
      names_.emplace(identity, name);
    }
    return identity;
  }
  void add(std::uint64_t shape, std::int64_t identity) {
    const std::scoped_lock lock(mutex_);
    const auto name = names_.find(identity);
    if (name != names_.end() && shapes_.size() < most) {
      shapes_.emplace(shape, name->second);
    }
  }
  std::string name_of(std::uint64_t shape) {
    const std::scoped_lock lock(mutex_);
    const auto found = shapes_.find(shape);
    return found == shapes_.end() ? "" : found->second;
  }

 private:
  static constexpr std::size_t most = 65536;
  std::mutex mutex_;
  std::unordered_map<std::int64_t, std::string> names_;
  std::unordered_map<std::uint64_t, std::string> shapes_;
};

NameTable& noted() {
  static NameTable all;
  return all;
}

}  // namespace

std::int64_t identity_of(std::string_view name) { return noted().add(name); }

void note_call(std::uint64_t shape, PayloadIdentity moved) {
  thread_local std::unordered_set<std::uint64_t> known;  // no lock for what was noted
  if (known.size() < 4096 && known.insert(shape).second) {
    noted().add(shape, moved.identity);
  }
}

namespace {

std::string (*say_work)() = nullptr;

}  // namespace

std::string work_in_words() { return say_work == nullptr ? std::string() : say_work(); }
void set_work_in_words(std::string (*say)()) { say_work = say; }

std::string to_string(const Call& call) {
  if (call.kind == CallKind::barrier) {
    return "barrier()";
  }
  std::string text =
      fmt::format("{}({}, {}", name_of(call.kind), tessera::name_of(call.dtype), call.count);
  const CallForm& form = form_of(call.kind);
  if (form.combine == Combine::reduce) {
    text += fmt::format(", {}", tessera::name_of(call.reduce));
  }
  if (!form.root_name.empty()) {
    text += fmt::format(", {} {}", form.root_name, call.root);
  }
  if (const std::string moved = noted().name_of(call.shape); !moved.empty()) {
    text += fmt::format(", '{}'", moved);
  } else if (call.shape != 0) {
    text += fmt::format(", extents {:08x}", static_cast<unsigned>(call.shape));
  }
  return text + ")";
}

}  // namespace tessera::collective
