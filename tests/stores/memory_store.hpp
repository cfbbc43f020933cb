// A store in the memory of the test, which fails as it is told. Include it after the imports of
// tessera.base, tessera.plugin and tessera.stores.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace tessera::testing {

using namespace stores;

/// What all stores of the scheme "memory" have, and what goes wrong.
struct Memory {
  std::map<std::string, std::string> objects;
  std::map<std::string, std::map<int, std::string>> uploads;
  std::vector<std::string> calls;
  /// Called before each request; throws what fails.
  std::function<void(const std::string& call)> before = [](const std::string&) {};
  std::size_t read_at_most = SIZE_MAX;  // bytes of one read
  std::size_t read_too_much = 0;
  std::vector<ListPage> pages;  // in place of the objects
  std::function<void()> after_complete = [] {};
  std::string sha256;
};
inline Memory memory;

[[noreturn]] inline void fail_memory(StoreFailure failure, double after = 0) {
  throw StoreError(failure, {.wrong = "the test wants it"}, after);
}

class MemoryStore final : public StoreWriter {
 public:
  ObjectFacts facts(const std::string& name, const RequestLimits& /*limits*/) override {
    call("facts " + name);
    return facts_of(name);
  }
  ListPage list(const std::string& folder, const std::string& next,
                const RequestLimits& /*limits*/) override {
    call("list " + folder + " " + next);
    if (!memory.pages.empty()) {
      return memory.pages[next.empty() ? 0 : std::stoul(next)];
    }
    ListPage page;
    for (const auto& [name, bytes] : memory.objects) {
      if (folder.empty() || name.starts_with(folder + "/")) {
        page.objects.push_back({.name = name, .facts = facts_of(name)});
      }
    }
    return page;
  }
  void read(const std::string& name, const ObjectFacts& facts, ByteRange range,
            const TakeBytes& take, const RequestLimits& /*limits*/) override {
    call("read " + name + " " + std::to_string(range.begin));
    if (facts_of(name).version != facts.version) {
      fail_memory(StoreFailure::changed);
    }
    std::string bytes = memory.objects.at(name).substr(range.begin, range.count);
    bytes = bytes.substr(0, memory.read_at_most) + std::string(memory.read_too_much, 'x');
    take(std::as_bytes(std::span(bytes)));
  }
  ObjectFacts put(const std::string& name, std::span<const std::byte> bytes,
                  const RequestLimits& /*limits*/) override {
    call("put " + name);
    memory.objects[name] = text_of(bytes);
    return facts_of(name);
  }
  PartLimits part_limits() const override {
    return {.smallest = 1, .largest = 1 << 30, .count = 9};
  }
  std::string begin_upload(const std::string& name, const RequestLimits& /*limits*/) override {
    call("begin " + name);
    memory.uploads["id of " + name];
    return "id of " + name;
  }
  UploadedPart put_part(const std::string& name, const std::string& id, int number,
                        std::span<const std::byte> bytes,
                        const RequestLimits& /*limits*/) override {
    call("part " + name + " " + std::to_string(number));
    memory.uploads.at(id)[number] = text_of(bytes);
    return {.number = number, .tag = "tag", .size = bytes.size()};
  }
  ObjectFacts complete_upload(const std::string& name, const std::string& id,
                              std::span<const UploadedPart> parts,
                              const RequestLimits& /*limits*/) override {
    call("complete " + name);
    if (!memory.uploads.contains(id)) {
      fail_memory(StoreFailure::not_there);
    }
    std::string all;
    for (const UploadedPart& part : parts) {
      all += memory.uploads.at(id).at(part.number);
    }
    memory.objects[name] = all;
    memory.uploads.erase(id);
    memory.after_complete();
    return facts_of(name);
  }
  void abort_upload(const std::string& name, const std::string& id,
                    const RequestLimits& /*limits*/) override {
    call("abort " + name);
    memory.uploads.erase(id);
  }
  std::vector<PendingUpload> pending_uploads(const std::string& /*folder*/,
                                             const RequestLimits& /*limits*/) override {
    std::vector<PendingUpload> all;
    for (const auto& [id, parts] : memory.uploads) {
      all.push_back({.name = id.substr(6), .id = id, .begun = 1000});
    }
    return all;
  }
  void remove(const std::string& name, const RequestLimits& /*limits*/) override {
    call("remove " + name);
    memory.objects.erase(name);
  }

 private:
  static std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static void call(const std::string& what) {
    memory.calls.push_back(what);
    memory.before(what);
  }
  static ObjectFacts facts_of(const std::string& name) {
    const auto found = memory.objects.find(name);
    if (found == memory.objects.end()) {
      fail_memory(StoreFailure::not_there);
    }
    return {.size = found->second.size(),
            .version = std::to_string(std::hash<std::string>()(found->second)),
            .sha256 = memory.sha256};
  }
};

/// A store that can do less than the one above.
class ReadOnlyStore final : public StoreReader {
 public:
  ObjectFacts facts(const std::string& name, const RequestLimits& limits) override {
    return all_.facts(name, limits);
  }
  void read(const std::string& name, const ObjectFacts& facts, ByteRange range,
            const TakeBytes& take, const RequestLimits& limits) override {
    all_.read(name, facts, range, take, limits);
  }

 private:
  MemoryStore all_;
};

template <class Opened>
class MemoryScheme final : public StoreScheme {
 public:
  /// "memory:bucket/path"
  StorePlace open(const Address& address) const override {
    const std::size_t slash = std::min(address.rest().find('/'), address.rest().size() - 1);
    return {std::make_unique<Opened>(), address.rest().substr(slash + 1)};
  }
};

/// The process has the schemes memory and readonly of this test.
inline void add_memory_schemes() {
  static const bool once = [] {
    plugin::host().add<StoreScheme>("memory",
                                    [] { return std::make_unique<MemoryScheme<MemoryStore>>(); });
    plugin::host().add<StoreScheme>("readonly",
                                    [] { return std::make_unique<MemoryScheme<ReadOnlyStore>>(); });
    return true;
  }();
  REQUIRE(once);
  memory = {};
}

/// Rules that do not wait long.
inline StoreRules quick_rules() {
  return {.retries = {.tries = 4, .first_pause = 0.001, .longest_pause = 0.002}};
}

}  // namespace tessera::testing
