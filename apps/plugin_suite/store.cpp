module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.plugin;
import tessera.stores;

// A store: whether what was written can be read, whole and in parts, what is not there is such an
// error, and wrong addresses are errors before anybody is asked.
namespace tessera::plugin_suite {
namespace {

using namespace stores;

std::ptrdiff_t threads_here() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

Address sample_of(const std::string& name) {
  const std::string sample = sample_of_scheme(name);
  if (sample.empty()) {
    throw SkippedCheck{"its sample() is empty"};
  }
  return Address(sample);
}

/// Rules that end within the time of a check.
StoreRules quick_rules() {
  return {.limits = {.connect_seconds = 5, .stalled_seconds = 5, .answer_seconds = 5},
          .retries = {.tries = 2, .first_pause = 0.1}};
}

/// A folder of the store that nobody else uses.
Address own_folder(const std::string& name) {
  const Address sample = sample_of(name);
  if (!OpenStore(sample, quick_rules()).is_writable()) {
    throw SkippedCheck{"it can only be read"};
  }
  return sample / fmt::format("tessera-check-{:08x}", std::random_device{}());
}

std::string bytes_of(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  std::ranges::generate(bytes, [&] { return static_cast<char>(random()); });
  return bytes;
}

std::string read_all(OpenStore& store, const std::string& name) {
  const ObjectFacts facts = store.facts(name);
  std::string text(facts.size, '\0');
  store.read(name, facts, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

/// The failure that an action throws; nothing: it throws none.
std::optional<StoreFailure> failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const StoreError& error) {
    return error.failure();
  }
  return std::nullopt;
}

std::string opens_its_sample(const std::string& name) {
  const std::ptrdiff_t before = threads_here();
  const OpenStore store(sample_of(name), quick_rules());
  note(store.is_writable() ? "it is read and written" : "it is read");
  return threads_here() == before ? "" : "open() starts a thread";
}

std::string refuses_wrong_addresses(const std::string& name) {
  std::vector<std::string> problems;
  for (const char* const rest :
       {"//x y", "//[", "@", "%2e%2e", "//\xc3\xa9", "//a/%00", "//:0/x"}) {
    const std::string text = name + ":" + rest;
    trying(text);
    try {
      static_cast<void>(OpenStore(Address(text), quick_rules()));
    } catch (const Error&) {
      continue;
    } catch (const std::exception& error) {
      problems.push_back(
          fmt::format("{} throws what is not an Error: {}", text, shown(error.what())));
    }
  }
  return some_of(problems);
}

std::string keeps_objects(const std::string& name) {
  OpenWritableStore store(own_folder(name), quick_rules());
  std::string problem;
  for (const std::size_t size : {0UL, 1UL, 100000UL}) {
    const std::string bytes = bytes_of(size, static_cast<unsigned>(size));
    store.put("a/object", std::as_bytes(std::span(bytes)));
    if (read_all(store, "a/object") != bytes) {
      problem = fmt::format("an object of {} bytes is not read as it was written", size);
    }
  }
  const std::string bytes = read_all(store, "a/object");
  std::string part(1000, '\0');
  store.read("a/object", store.facts("a/object"), 777, std::as_writable_bytes(std::span(part)));
  if (part != bytes.substr(777, part.size())) {
    problem = "a range of an object has other bytes";
  }
  if (const auto listed = store.list("a");
      listed.size() != 1 || listed[0].name != "a/object" || listed[0].facts.size != bytes.size()) {
    problem = "a list does not have the object that was written, or its size";
  }
  if (!store.list("b").empty()) {
    problem = "a folder without objects has a list";
  }
  store.remove("a/object");
  store.remove("a/object");
  if (failure_of([&] { store.facts("a/object"); }) != StoreFailure::not_there) {
    problem = "an object that was removed is not 'not there'";
  }
  return problem;
}

std::string knows_what_changed(const std::string& name) {
  OpenWritableStore store(own_folder(name), quick_rules());
  const std::string first = bytes_of(1000, 1);
  const std::string second = bytes_of(2000, 2);
  store.put("object", std::as_bytes(std::span(first)));
  const ObjectFacts facts = store.facts("object");
  if (store.facts("object").version != facts.version) {
    return "the version of an object changes while nobody writes it";
  }
  store.put("object", std::as_bytes(std::span(second)));
  std::string text(facts.size, '\0');
  const auto failure =
      failure_of([&] { store.read("object", facts, 0, std::as_writable_bytes(std::span(text))); });
  store.remove("object");
  if (facts.version.empty()) {
    note("it has no versions: what changes while it is read is not found out");
    return "";
  }
  return failure == StoreFailure::changed
             ? ""
             : "bytes of another version are not the failure 'changed'";
}

std::string takes_parts(const std::string& name) {
  OpenWritableStore store(own_folder(name), quick_rules());
  const std::string bytes = bytes_of(std::size_t{34} << 20, 3);
  {
    Upload left = store.upload("left", bytes.size());
    left.add(std::as_bytes(std::span(bytes)));
  }
  if (failure_of([&] { store.facts("left"); }) != StoreFailure::not_there) {
    return "an upload that was not completed is an object";
  }
  Upload upload = store.upload("object", bytes.size());
  upload.add(std::as_bytes(std::span(bytes)));
  if (failure_of([&] { store.facts("object"); }) != StoreFailure::not_there) {
    return "an upload is an object before it is completed";
  }
  upload.complete();
  const bool equal = read_all(store, "object") == bytes;
  const std::size_t listed = store.list().size();
  store.remove("object");
  return !equal        ? "an object of several parts has other bytes"
         : listed != 1 ? "uploads that are not complete are in lists"
                       : "";
}

std::string has_no_other_objects(const std::string& name) {
  OpenStore store(sample_of(name), quick_rules());
  const std::string none = fmt::format("tessera-none-{:08x}", std::random_device{}());
  return failure_of([&] { store.facts(none); }) == StoreFailure::not_there
             ? ""
             : "an object that is not there is not the failure 'not there'";
}

}  // namespace

std::vector<SuiteCheck> store_suite(const std::string& name) {
  const auto of = [&](std::string (*check)(const std::string&)) {
    return [name, check] { return check(name); };
  };
  return {{"it opens its sample and starts no thread", of(opens_its_sample)},
          {"wrong addresses are errors, or open", of(refuses_wrong_addresses)},
          {"what is not there is such an error", of(has_no_other_objects)},
          {"objects are read as they were written", of(keeps_objects)},
          {"an object that changes is found out", of(knows_what_changed)},
          {"uploads in parts appear when they are complete", of(takes_parts)}};
}

}  // namespace tessera::plugin_suite
