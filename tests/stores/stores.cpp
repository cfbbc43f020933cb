// Addresses, and what the host does above the requests of a plugin.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.plugin;
import tessera.stores;

#include "memory_store.hpp"

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;

namespace {

StoreFailure failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const StoreError& error) {
    return error.failure();
  }
  FAIL("no StoreError");
  return StoreFailure::cancelled;
}

std::string all_of(OpenStore& store, const std::string& name) {
  const ObjectFacts facts = store.facts(name);
  std::string text(facts.size, '\0');
  store.read(name, facts, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

TEST_CASE("an address has a scheme, and everything else is a path") {
  for (const auto& [text, scheme, rest] :
       {std::tuple("s3://bucket/a/b.jsonl", "s3", "bucket/a/b.jsonl"),
        {"hf:owner/name@main", "hf", "owner/name@main"},
        {"hf://owner/name/", "hf", "owner/name"},
        {"https://host:80/a%20b", "https", "host:80/a%20b"}}) {
    const Location location = parse_location(text);
    const auto* const address = std::get_if<Address>(&location);
    REQUIRE(address != nullptr);
    CHECK(address->scheme() == scheme);
    CHECK(address->rest() == rest);
    CHECK(parse_location(text_of(location)) == location);
  }
  for (const char* const path : {"", "a", "/a/b", "./a:b", "a/b:c", "C:x", "Data:x", "1a:x",
                                 "x:", ":", "a b:c", "..", "é:x"}) {
    INFO(path);
    CHECK(std::get<LocalPath>(parse_location(path)).path == path);
  }
  CHECK((Address("s3://b") / "x/y").text() == "s3://b/x/y");
}

TEST_CASE("an address of a wrong form is an error that has no secret") {
  for (const auto& [text, part] : {std::pair("s3://b/../c", "'.' or '..'"),
                                   {"s3://b/./c", "'.' or '..'"},
                                   {"s3://b//c", "empty part"},
                                   {"s3://", "names nothing"},
                                   {"hf:", "names nothing"},
                                   {"https://h/a\\b", "'\\'"},
                                   {"https://h/a\nb", "control character"},
                                   {"https://h/\xff", "not UTF-8"},
                                   {"https://user:secret@h/a", "no user and no password"},
                                   {"https://secret@h", "no user and no password"},
                                   {"https://h/a?X-Signature=secret", "no '?' and no '#'"},
                                   {"https://h/a#secret", "no '?' and no '#'"}}) {
    INFO(text);
    const std::string error = input_error([&] { parse_location(text); });
    CHECK_THAT(error, Contains(part));
    CHECK_THAT(error, !Contains("secret"));
  }
  CHECK_THAT(input_error([] { parse_location("s3://b/" + std::string(5000, 'x')); }),
             Contains("too long"));
  for (const char* const name : {"", "/a", "a/", "a//b", "..", "a/../b", "a\\b", "a\nb"}) {
    CHECK(input_error([&] { check_object_name(name, "x"); }) != "");
  }
}

TEST_CASE("a scheme that no plugin knows is an error that names those that are there") {
  add_memory_schemes();
  const std::string error = input_error([] { OpenStore store(Address("gs://bucket/a")); });
  CHECK_THAT(error, Contains("gs://bucket/a: no plugin knows the scheme 'gs'") &&
                        Contains("memory") && Contains("readonly"));
}

TEST_CASE("what may pass is tried again, and bytes that have come are not asked for twice") {
  add_memory_schemes();
  memory.objects["a"] = "0123456789";
  memory.read_at_most = 3;
  int failures = 0;
  memory.before = [&](const std::string& call) {
    if (call.starts_with("read") && failures++ % 2 == 0) {
      fail_memory(StoreFailure::temporary);
    }
  };
  OpenStore store(Address("memory:b/a"), quick_rules());
  CHECK(all_of(store, "") == "0123456789");
  CHECK(memory.calls == std::vector<std::string>{"facts a", "read a 0", "read a 0", "read a 3",
                                                 "read a 3", "read a 6", "read a 6", "read a 9",
                                                 "read a 9"});
  CHECK(store.counts().bytes_read == 10);
}

TEST_CASE("tries have an end, and what cannot pass is tried once") {
  add_memory_schemes();
  memory.objects["a"] = "0123456789";
  OpenStore store(Address("memory:b"), quick_rules());
  StoreFailure failure{};
  double after = 0;
  memory.before = [&](const std::string&) { fail_memory(failure, after); };
  for (const auto what :
       {StoreFailure::not_there, StoreFailure::no_rights, StoreFailure::changed,
        StoreFailure::no_space, StoreFailure::wrong_address, StoreFailure::wrong_answer}) {
    failure = what;
    memory.calls.clear();
    CHECK(failure_of([&] { store.facts("a"); }) == what);
    CHECK(memory.calls.size() == 1);
  }
  failure = StoreFailure::temporary;
  memory.calls.clear();
  CHECK_THAT(error_of([&] { store.facts("a"); }),
             Contains("memory:b/a: the test wants it (it was tried 4 times); check the network"));
  CHECK(memory.calls.size() == 4);
  after = 1000;  // more than rules allow
  memory.calls.clear();
  CHECK_THAT(error_of([&] { store.facts("a"); }), Contains("wants to be asked again after"));
  CHECK(memory.calls.size() == 1);
}

TEST_CASE("a pause is at least what the store asks for, and ends where the caller cancels") {
  add_memory_schemes();
  memory.objects["a"] = "x";
  int failures = 1;
  memory.before = [&](const std::string&) {
    if (failures-- > 0) {
      fail_memory(StoreFailure::temporary, 0.3);
    }
  };
  Stopwatch watch;
  CHECK(OpenStore(Address("memory:b"), quick_rules()).facts("a").size == 1);
  CHECK(watch.waited() >= 0.3);
  StoreRules rules = quick_rules();
  rules.limits.cancelled = [] { return true; };
  failures = 100;
  OpenStore store(Address("memory:b"), rules);
  CHECK(failure_of([&] { store.facts("a"); }) == StoreFailure::cancelled);
}

TEST_CASE("more bytes than were asked for, other hashes and large texts are errors") {
  add_memory_schemes();
  memory.objects["a"] = "hello\n";
  OpenStore store(Address("memory:b"), quick_rules());
  memory.sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
  CHECK(store.text("a", 100) == "hello\n");
  CHECK_THAT(error_of([&] { store.text("a", 5); }), Contains("too large"));
  memory.read_too_much = 1;
  CHECK(failure_of([&] { store.text("a", 100); }) == StoreFailure::wrong_answer);
  memory.read_too_much = 0;
  memory.objects["a"] = "hellO\n";
  CHECK_THAT(error_of([&] { store.text("a", 100); }), Contains("another SHA-256"));
  memory.sha256 = "no hash";
  CHECK(failure_of([&] { store.text("a", 100); }) == StoreFailure::wrong_answer);
}

TEST_CASE("an object that changes between its facts and its bytes is an error") {
  add_memory_schemes();
  memory.objects["a"] = "first";
  OpenStore store(Address("memory:b"), quick_rules());
  const ObjectFacts facts = store.facts("a");
  memory.objects["a"] = "other";
  std::string text(5, '\0');
  CHECK(failure_of([&] { store.read("a", facts, 0, std::as_writable_bytes(std::span(text))); }) ==
        StoreFailure::changed);
  CHECK(error_of([&] { store.read("a", facts, 3, std::as_writable_bytes(std::span(text))); }) !=
        "no error");
}

TEST_CASE("names of a list are below the address, sorted, and what they could harm is refused") {
  add_memory_schemes();
  memory.objects = {{"d/b", "1"}, {"d/a/c", "22"}, {"other", "3"}, {"dd/x", ""}};
  OpenStore store(Address("memory:bucket/d"), quick_rules());
  const auto listed = store.list();
  REQUIRE(listed.size() == 2);
  CHECK(listed[0].name == "a/c");
  CHECK(listed[0].facts.size == 2);
  CHECK(listed[1].name == "b");
  const auto page = [](const std::string& name, const std::string& next = "") {
    ListPage one;
    one.objects.push_back({.name = name, .facts = {}});
    one.next = next;
    return one;
  };
  for (const char* const name : {"d/../x", "d//x", "x", "/etc/passwd", "d/a\nb"}) {
    INFO(name);
    memory.pages = {page(name)};
    CHECK(failure_of([&] { store.list(); }) == StoreFailure::wrong_answer);
  }
  memory.pages = {page("d/a", "1"), page("d/a")};
  CHECK_THAT(error_of([&] { store.list(); }), Contains("twice"));
  memory.pages = {page("d/a", "1"), page("d/b", "0"), page("d/c", "1")};
  CHECK(failure_of([&] { store.list(); }) == StoreFailure::wrong_answer);
  memory.pages = {page("d/a", "1"), page("d/b", "1")};
  CHECK_THAT(error_of([&] { store.list(); }), Contains("does not end"));
}

TEST_CASE("a store that can only be read is none to write to or to list") {
  add_memory_schemes();
  memory.objects["a"] = "x";
  CHECK(OpenStore(Address("readonly:b")).facts("a").size == 1);
  CHECK_THAT(error_of([] { OpenWritableStore store(Address("readonly:b")); }),
             Contains("stores of the scheme 'readonly' can only be read"));
  CHECK_THAT(error_of([] { OpenStore(Address("readonly:b")).list(); }),
             Contains("have no lists of files; name each file"));
}

TEST_CASE("an upload appears when it is complete, in parts where it is large") {
  add_memory_schemes();
  OpenWritableStore store(Address("memory:b/d"), quick_rules());
  const std::string small = "small";
  {
    Upload upload = store.upload("a");
    upload.add(std::as_bytes(std::span(small)));
    CHECK(memory.objects.empty());
    CHECK(upload.complete().size == 5);
  }
  CHECK(memory.objects.at("d/a") == "small");
  std::string large(std::size_t{40} << 20, 'x');
  large[20000000] = 'y';
  int failures = 0;
  memory.before = [&](const std::string&) {
    if (failures++ % 3 == 0) {
      fail_memory(StoreFailure::temporary);
    }
  };
  {
    Upload upload = store.upload("large");
    for (std::size_t at = 0; at < large.size(); at += 1000000) {
      upload.add(std::as_bytes(std::span(large).subspan(at))
                     .first(std::min<std::size_t>(1000000, large.size() - at)));
    }
    CHECK(!memory.objects.contains("d/large"));
    CHECK(upload.complete().size == large.size());
  }
  CHECK(memory.objects.at("d/large") == large);
  CHECK(memory.uploads.empty());
}

TEST_CASE("an upload that is left is aborted, and one whose answer is lost is found") {
  add_memory_schemes();
  OpenWritableStore store(Address("memory:b"), quick_rules());
  const std::string large(std::size_t{17} << 20, 'x');
  {
    Upload upload = store.upload("a");
    upload.add(std::as_bytes(std::span(large)));
    CHECK(memory.uploads.size() == 1);
  }
  CHECK(memory.uploads.empty());
  CHECK(memory.objects.empty());
  memory.after_complete = [] { fail_memory(StoreFailure::temporary); };
  Upload upload = store.upload("a");
  upload.add(std::as_bytes(std::span(large)));
  CHECK(upload.complete().size == large.size());
  memory.uploads["id of old"];
  CHECK(store.abort_pending("", 60) == 1);
  CHECK(memory.uploads.empty());
  store.remove("a");
  CHECK(memory.objects.empty());
}
