module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.stores;

import tessera.base;
import :opened_state;
import :object_hash;

namespace tessera::stores {

OpenStore::OpenStore(Address address, StoreRules rules)
    : state_(std::make_shared<State>(std::move(address), std::move(rules))) {}
OpenStore::OpenStore(OpenStore&&) noexcept = default;
OpenStore::~OpenStore() = default;

const Address& OpenStore::address() const { return state_->address(); }
const StoreRules& OpenStore::rules() const { return state_->rules(); }
StoreCounts OpenStore::counts() const { return state_->counts(); }

bool OpenStore::is_whole() const { return state_->name_of("").empty(); }
bool OpenStore::has_lists() const { return state_->lister() != nullptr; }

ObjectFacts OpenStore::facts(const std::string& name) {
  ObjectFacts facts = state_->call(name, [&](StoreReader& reader, const std::string& object) {
    return reader.facts(object, rules().limits);
  });
  state_->check_facts(name, facts);
  return facts;
}

std::vector<ListedObject> OpenStore::list(const std::string& folder) {
  if (state_->lister() == nullptr) {
    state_->fail_with(
        StoreFailure::wrong_address, folder,
        fmt::format("stores of the scheme '{}' have no lists of files", address().scheme()),
        "name each file");
  }
  std::vector<ListedObject> all;
  std::set<std::string> pages;
  std::string next;
  do {
    ListPage page = state_->call(folder, [&](StoreReader&, const std::string& below) {
      return state_->lister()->list(below, next, rules().limits);
    });
    for (ListedObject& object : page.objects) {
      object.name = state_->relative_name(object.name, folder);
      state_->check_facts(object.name, object.facts);
      all.push_back(std::move(object));
    }
    if (all.size() > rules().most_listed) {
      state_->fail_with(
          StoreFailure::wrong_answer, folder,
          fmt::format("it has too many objects (expected at most {})", rules().most_listed));
    }
    next = std::move(page.next);
    if (!next.empty() && !pages.insert(next).second) {
      state_->fail_with(StoreFailure::wrong_answer, folder, "its list does not end");
    }
  } while (!next.empty());
  std::ranges::sort(all, {}, &ListedObject::name);
  const auto twice = std::ranges::adjacent_find(all, {}, &ListedObject::name);
  if (twice != all.end()) {
    state_->fail_with(StoreFailure::wrong_answer, folder,
                      fmt::format("its list has '{}' twice", twice->name));
  }
  return all;
}

void OpenStore::read(const std::string& name, const ObjectFacts& facts, ByteRange range,
                     const TakeBytes& take) {
  if (range.begin > facts.size || range.count > facts.size - range.begin) {
    fail({.thing = (address() / name).text(),
          .wrong = fmt::format("bytes {} to {} are not in it (it has {})", range.begin,
                               range.begin + range.count, facts.size)});
  }
  Attempts attempts(rules());
  while (range.count > 0) {
    try {
      state_->count_request(attempts);
      const auto count_and_take = [&](std::span<const std::byte> bytes) {
        if (bytes.size() > range.count) {
          throw StoreError(StoreFailure::wrong_answer,
                           {.wrong = "the store sent more bytes than it was asked for"});
        }
        take(bytes);
        state_->count_read(bytes.size());
        range.begin += bytes.size();
        range.count -= bytes.size();
        if (!bytes.empty()) {
          attempts.progress();
        }
      };
      state_->reader().read(state_->name_of(name), facts, range, count_and_take, rules().limits);
      if (range.count > 0) {
        throw StoreError(StoreFailure::temporary,
                         {.wrong = fmt::format("{} bytes are missing at the end of what was sent",
                                               range.count)});
      }
    } catch (const StoreError& failure) {
      state_->retry(attempts, name, failure);
    }
  }
}

void OpenStore::read(const std::string& name, const ObjectFacts& facts, std::uint64_t begin,
                     std::span<std::byte> out) {
  std::size_t filled = 0;
  read(name, facts, {.begin = begin, .count = out.size()}, [&](std::span<const std::byte> bytes) {
    std::memcpy(out.data() + filled, bytes.data(), bytes.size());
    filled += bytes.size();
  });
}

std::string OpenStore::text(const std::string& name, std::size_t most) {
  const ObjectFacts known = facts(name);
  if (known.size > most) {
    state_->fail_with(StoreFailure::wrong_answer, name,
                      fmt::format("it is too large (expected at most {}, got {})",
                                  format_bytes(most), format_bytes(known.size)));
  }
  std::string text(known.size, '\0');
  read(name, known, 0, std::as_writable_bytes(std::span(text)));
  ObjectHash hash(known);
  hash.add(std::as_bytes(std::span(text)));
  if (const std::string wrong = hash.wrong(); !wrong.empty()) {
    state_->fail_with(StoreFailure::wrong_answer, name, wrong);
  }
  return text;
}

std::string OpenStore::fixed_revision() {
  return state_->call("", [&](StoreReader& reader, const std::string&) {
    return reader.fixed_revision(rules().limits);
  });
}

}  // namespace tessera::stores
