module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.stores;

import tessera.base;
import tessera.plugin;
import :opened_state;

namespace tessera::stores {
namespace {

/// Schemes of Tessera's own plugins, and how to get those that this machine does not have.
struct KnownScheme {
  std::string_view name;
  std::string_view plugin;
};
constexpr KnownScheme own_schemes[] = {{"https", "web_stores"}, {"hf", "web_stores"}, {"s3", "s3"}};

std::unique_ptr<StoreScheme> load_scheme(const Address& address) {
  const std::vector<std::string> known = known_schemes();
  if (std::ranges::find(known, address.scheme()) == known.end()) {
    const auto own = std::ranges::find(own_schemes, address.scheme(), &KnownScheme::name);
    fail_input(
        {.thing = address.text(),
         .wrong = fmt::format("no plugin knows the scheme '{}' ({}{})", address.scheme(),
                              known.empty() ? std::string("there is none of the kind store")
                                            : "there are " + join_words(known),
                              did_you_mean(address.scheme(), known)),
         .advice =
             own != std::end(own_schemes)
                 ? fmt::format("build Tessera with libcurl (libcurl4-openssl-dev), or install "
                               "the plugin {}",
                               own->plugin)
                 : fmt::format("install a plugin that has it ('tessera plugin list'), or "
                               "write ./{} for a file of this name",
                               address.text())});
  }
  std::unique_ptr<StoreScheme> scheme = plugin::host().find<StoreScheme>(address.scheme())();
  if (!scheme) {
    fail_input({.thing = fmt::format("store '{}'", address.scheme()),
                .wrong = "its plugin returned no object"});
  }
  return scheme;
}

std::string_view advice_for(StoreFailure failure) {
  switch (failure) {
    case StoreFailure::not_there:
      return "check the address";
    case StoreFailure::no_rights:
      return "check the keys or the token in the environment, and what they may do there";
    case StoreFailure::temporary:
      return "check the network and the server, and try again";
    case StoreFailure::changed:
      return "start again with the object as it is now, or name a fixed revision of it";
    case StoreFailure::no_space:
      return "make room there";
    case StoreFailure::wrong_address:
    case StoreFailure::wrong_answer:
    case StoreFailure::cancelled:
      break;
  }
  return {};
}

}  // namespace

std::vector<std::string> known_schemes() {
  std::vector<std::string> names = plugin::host().names(StoreScheme::plugin_kind.name);
  std::ranges::sort(names);
  return names;
}

OpenStore::State::State(Address address, StoreRules rules)
    : address_(std::move(address)), rules_(std::move(rules)), scheme_(load_scheme(address_)) {
  try {
    place_.emplace(scheme_->open(address_));
  } catch (const StoreError& failure) {
    throw StoreError(failure.failure(), completed("", failure));
  }
  if (std::visit([](const auto& store) { return store == nullptr; }, place_->store)) {
    fail_input({.thing = fmt::format("store '{}'", address_.scheme()),
                .wrong = "its plugin opened nothing"});
  }
  if (!place_->name.empty()) {
    check_object_name(place_->name, address_.text());
  }
}

StoreReader& OpenStore::State::reader() const {
  return std::visit([](const auto& store) -> StoreReader& { return *store; }, place_->store);
}

StoreLister* OpenStore::State::lister() const {
  const auto* const lister = std::get_if<std::unique_ptr<StoreLister>>(&place_->store);
  return lister != nullptr ? lister->get() : writer();
}

StoreWriter* OpenStore::State::writer() const {
  const auto* const writer = std::get_if<std::unique_ptr<StoreWriter>>(&place_->store);
  return writer != nullptr ? writer->get() : nullptr;
}

std::string OpenStore::State::name_of(const std::string& name) const {
  if (!name.empty()) {
    check_object_name(name, address_.text());
  }
  return place_->name.empty() || name.empty() ? place_->name + name : place_->name + "/" + name;
}

std::string OpenStore::State::relative_name(const std::string& name,
                                            const std::string& folder) const {
  try {
    check_object_name(name, (address_ / folder).text());
  } catch (const Error& error) {
    throw StoreError(StoreFailure::wrong_answer, error.fields());
  }
  const std::string below = name_of(folder);
  if (!below.empty() && !name.starts_with(below + "/")) {
    fail_with(StoreFailure::wrong_answer, folder,
              fmt::format("its list has '{}', which is not below it", name));
  }
  return place_->name.empty() ? name : name.substr(place_->name.size() + 1);
}

ErrorFields OpenStore::State::completed(const std::string& name, const StoreError& failure) const {
  ErrorFields fields = failure.fields();
  if (fields.thing.empty()) {
    fields.thing = (address_ / name).text();
  }
  if (fields.advice.empty() && failure.failure() == StoreFailure::no_rights) {
    fields.advice = scheme_->how_to_get_rights();
  }
  if (fields.advice.empty()) {
    fields.advice = advice_for(failure.failure());
  }
  return fields;
}

void OpenStore::State::count_request(const Attempts& attempts) {
  requests_ += 1;
  repeated_ += attempts.failures() > 0 ? 1 : 0;
}

void OpenStore::State::retry(Attempts& attempts, const std::string& name,
                             const StoreError& failure) const {
  attempts.after(StoreError(failure.failure(), completed(name, failure), failure.after()));
}

void OpenStore::State::fail_with(StoreFailure failure, const std::string& name, std::string wrong,
                                 std::string advice) const {
  const StoreError error(failure, {.wrong = std::move(wrong), .advice = std::move(advice)});
  throw StoreError(failure, completed(name, error));
}

void OpenStore::State::check_facts(const std::string& name, const ObjectFacts& facts) const {
  const auto is_hash = [](const std::string& text, std::size_t digits) {
    return text.empty() || (text.size() == digits && std::ranges::all_of(text, [](char c) {
                              return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                            }));
  };
  if (!is_hash(facts.sha256, 64) || !is_hash(facts.git_blob, 40)) {
    fail_with(StoreFailure::wrong_answer, name, "what the store says is its hash is none");
  }
}

StoreCounts OpenStore::State::counts() const {
  return {.requests = requests_,
          .repeated = repeated_,
          .bytes_read = bytes_read_,
          .bytes_written = bytes_written_};
}
void OpenStore::State::count_read(std::size_t bytes) { bytes_read_ += bytes; }
void OpenStore::State::count_written(std::size_t bytes) { bytes_written_ += bytes; }

}  // namespace tessera::stores
