// Copies of what is in stores: what is kept, continued, shared and removed; faults and kills.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"
#include "hub_server.hpp"

import tessera.base;
import tessera.stores;

using namespace tessera;
using namespace tessera::stores;
using namespace tessera::testing;
using Catch::Contains;

namespace {

/// A hub, and a folder for copies.
class CopyEnvironment : public Folder {
 public:
  CopyEnvironment() {
    setenv("HF_HOME", (*this / "home").c_str(), 1);
    setenv("HF_ENDPOINT", hub.url().c_str(), 1);
    unsetenv("HF_TOKEN");
    rules = {.store = {.limits = {.connect_seconds = 2, .stalled_seconds = 1, .answer_seconds = 2},
                       .retries = {.tries = 5, .first_pause = 0.001, .longest_pause = 0.01}},
             .folder = *this / "copies"};
    files() = {{"config.json", {"hello\n", "ce013625030ba8dba906f756967f9e9ca394464a"}},
               {"data/a.jsonl", {random_bytes(200000, 1)}},
               {"data/b.jsonl", {random_bytes(100000, 2)}},
               {"data/c.txt", {"", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"}}};
  }
  std::map<std::string, HubFile>& files() { return hub.state.files; }
  std::size_t requests_of_files() {
    const std::lock_guard lock(hub.state.guard);
    return static_cast<std::size_t>(
        std::ranges::count_if(hub.state.seen, [](const std::string& path) {
          return path.starts_with("/cdn/") || path.find("/resolve/") != std::string::npos;
        }));
  }
  /// Whether a copy has the bytes of the hub below `folder`.
  bool is_right(const LocalCopy& copy, const std::string& folder = "") {
    std::size_t count = 0;
    for (const auto& [name, file] : files()) {
      if (name.starts_with(folder)) {
        ++count;
        if (read_file(copy.path() + "/" + name.substr(folder.size())) != file.bytes) {
          return false;
        }
      }
    }
    std::size_t there = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(copy.path())) {
      there += entry.is_regular_file() ? 1 : 0;
    }
    return count == there;
  }
  HubServer hub;
  CopyRules rules;
};

}  // namespace

TEST_CASE("hf:x and hf://x name one copy") {
  CopyEnvironment env;
  const LocalCopy first = fetch(Address("hf:owner/name/data"), env.rules);
  const std::size_t before = env.requests_of_files();
  const LocalCopy second = fetch(Address("hf://owner/name/data"), env.rules);
  CHECK(second.path() == first.path());
  CHECK(second.content() == first.content());
  CHECK(second.fetched() == 0);
  CHECK(env.requests_of_files() - before <= 2);  // whether the address is a file
}

TEST_CASE("a copy has the files of the address, and is not fetched twice") {
  CopyEnvironment env;
  const LocalCopy all = fetch(Address("hf:owner/name"), env.rules);
  CHECK(env.is_right(all));
  CHECK(all.fetched() == 300006);
  const std::size_t requests = env.requests_of_files();
  const LocalCopy again = fetch(Address("hf:owner/name"), env.rules);
  CHECK(again.path() == all.path());
  CHECK(again.content() == all.content());
  CHECK(again.fetched() == 0);
  CHECK(env.requests_of_files() == requests);
  const LocalCopy folder = fetch(Address("hf:owner/name/data"), env.rules);
  CHECK(env.is_right(folder, "data/"));
  const LocalCopy file = fetch(Address("hf:owner/name/data/a.jsonl"), env.rules);
  CHECK(file.path().ends_with("/a.jsonl"));
  CHECK(read_file(file.path()) == env.files().at("data/a.jsonl").bytes);
  const LocalCopy some = fetch(Address("hf:owner/name/data/*.jsonl"), env.rules);
  CHECK(std::filesystem::exists(some.path() + "/a.jsonl"));
  CHECK(std::filesystem::exists(some.path() + "/b.jsonl"));
  CHECK(!std::filesystem::exists(some.path() + "/c.txt"));
  CHECK_THAT(error_of([&] { fetch(Address("hf:owner/name/*.jsonl"), env.rules); }),
             Contains("hf:owner/name/*.jsonl: there is nothing of this name"));
  CHECK_THAT(error_of([&] { fetch(Address("hf:owner/name/nothing"), env.rules); }),
             Contains("there is nothing of this name"));
  CHECK(error_of([&] { fetch(Address("hf:own*/name"), env.rules); }) != "no error");
}

TEST_CASE("what changes in a store is another copy, and a damaged copy is fetched again") {
  CopyEnvironment env;
  const LocalCopy before = fetch(Address("hf:owner/name"), env.rules);
  const std::string old = env.files().at("data/a.jsonl").bytes;
  env.files().at("data/a.jsonl").bytes[5] ^= 1;
  const LocalCopy after = fetch(Address("hf:owner/name"), env.rules);
  CHECK(after.content() != before.content());
  CHECK(env.is_right(after));
  CHECK(read_file(before.path() + "/data/a.jsonl") == old);
  std::filesystem::resize_file(after.path() + "/data/a.jsonl", 10);
  std::filesystem::remove(after.path() + "/config.json");
  CHECK(env.is_right(fetch(Address("hf:owner/name"), env.rules)));
}

TEST_CASE("bytes with another hash never become a file") {
  CopyEnvironment env;
  std::atomic<int> wrong = 1;
  env.hub.state.fault = [&](const Request& request, Reply& reply) {
    if (request.path.starts_with("/cdn/data/a.jsonl") && !reply.body.empty() && wrong-- > 0) {
      reply.body[reply.body.size() / 2] ^= 1;
    }
  };
  CHECK(env.is_right(fetch(Address("hf:owner/name"), env.rules)));
  wrong = 1000;
  env.files().at("data/a.jsonl").bytes[0] ^= 1;
  CHECK_THAT(error_of([&] { fetch(Address("hf:owner/name"), env.rules); }),
             Contains("hf:owner/name/data/a.jsonl: its bytes have another SHA-256 than the store "
                      "says (fetched 2 times)"));
  env.hub.state.fault = [](const Request& request, Reply& reply) {
    if (request.path.find("/resolve/") != std::string::npos && reply.body == "hello\n") {
      reply.body = "hellO\n";
    }
  };
  env.files().at("data/a.jsonl").bytes[0] ^= 3;
  CHECK_THAT(error_of([&] { fetch(Address("hf:owner/name"), env.rules); }),
             Contains("config.json: its bytes have another git hash"));
}

TEST_CASE("copies that nobody uses make room for others") {
  CopyEnvironment env;
  env.rules.most = 350000;
  {
    const LocalCopy used = fetch(Address("hf:owner/name/data/a.jsonl"), env.rules);
    CHECK_THAT(error_of([&] { fetch(Address("hf:owner/name"), env.rules); }),
               Contains("there is no room for its copy") && Contains("TESSERA_STORE_CACHE_GIB"));
    CHECK(std::filesystem::exists(used.path()));
  }
  CHECK(env.is_right(fetch(Address("hf:owner/name"), env.rules)));
  env.rules.most = 10;
  CHECK(error_of([&] { fetch(Address("hf:owner/name/data/b.jsonl"), env.rules); }) != "no error");
}

TEST_CASE("several processes that need a copy fetch it once") {
  CopyEnvironment env;
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 1;
      try {
        const LocalCopy copy = fetch(Address("hf:owner/name"), env.rules);
        code = env.is_right(copy) ? 0 : 2;
      } catch (const std::exception&) {
      }
      _exit(code);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  const std::lock_guard lock(env.hub.state.guard);
  CHECK(std::ranges::count_if(env.hub.state.seen, [](const std::string& path) {
          return path.starts_with("/cdn/data/a.jsonl");
        }) == 1);
}

namespace {

/// Fetches with faults at random, again after each error, until it is there; false: never.
bool fetch_with_faults(CopyEnvironment& env, unsigned seed, int faults, int& injected,
                       std::string& problem) {
  std::mt19937 random(seed);
  std::atomic<int> left = faults;
  env.hub.state.fault = [&](const Request& request, Reply& reply) {
    if (left <= 0 || random() % 2 == 0) {
      return;
    }
    --left;
    switch (random() % 9) {
      case 0:
        reply.code = 500;
        break;
      case 1:
        reply = {.code = 503, .headers = "Retry-After: 0\r\n"};
        break;
      case 2:
        reply.fault = Fault::reset;
        break;
      case 3:
        reply.fault = Fault::closed;
        break;
      case 4:
        reply.fault = Fault::half;
        break;
      case 5:
        reply.fault = Fault::garbage;
        break;
      case 6:  // a wrong length: the rest does not come
        reply.body.resize(reply.body.size() / 2);
        break;
      case 7:  // of files, which have hashes; that lists are the hub's is up to TLS
        if (!reply.body.empty() && request.path.find("/api/") == std::string::npos) {
          reply.body[random() % reply.body.size()] ^= 1;
        }
        break;
      default:
        reply = {.code = 401, .body = "expired"};
        break;
    }
  };
  for (int tries = 0; tries < 200; ++tries) {
    try {
      const LocalCopy copy = fetch(Address("hf:owner/name"), env.rules);
      if (!env.is_right(copy)) {
        problem = "a wrong byte";
        return false;
      }
      injected += faults - left;
      return true;
    } catch (const Error&) {
      // A clear error; the next call goes on.
    } catch (const std::exception& error) {
      problem = error.what();
      return false;
    }
  }
  problem = "it is never there";
  return false;
}

int faults_of_all(int wanted) {
  int injected = 0;
  for (unsigned seed = 1; injected < wanted; ++seed) {
    CopyEnvironment env;
    std::string problem;
    INFO("seed " << seed);
    const bool right = fetch_with_faults(env, seed, 20, injected, problem);
    INFO(problem);
    REQUIRE(right);
  }
  return injected;
}

}  // namespace

TEST_CASE("faults of every kind end in the right bytes or in an error") {
  CHECK(faults_of_all(40) >= 40);
}

TEST_CASE("a thousand faults end in the right bytes or in an error", "[.long]") {
  CHECK(faults_of_all(1000) >= 1000);
}

namespace {

/// Fetches in processes that are killed at random moments, until one is not.
void fetch_with_kills(int kills, std::size_t megabytes) {
  CopyEnvironment env;
  env.files()["large.bin"] = {random_bytes(megabytes << 20, 3)};
  std::mt19937 random(5);
  int killed = 0;
  int continued = 0;
  while (killed < kills) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        const LocalCopy copy = fetch(Address("hf:owner/name"), env.rules);
        const bool resumed = copy.fetched() < (megabytes << 20);
        _exit(!env.is_right(copy) ? 3 : resumed ? 10 : 0);
      } catch (const std::exception&) {
        _exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 2000));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) {
      REQUIRE((WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 10));
      continued += WEXITSTATUS(status) == 10 ? 1 : 0;
      env.files().at("large.bin").bytes[random() % 1000] ^= 1;  // another copy
      std::filesystem::remove_all(env.rules.folder);
    } else {
      ++killed;
    }
  }
  CHECK(env.is_right(fetch(Address("hf:owner/name"), env.rules)));
  CHECK(continued > 0);
}

}  // namespace

TEST_CASE("a fetch that is killed is continued with the right bytes", "[.long]") {
  fetch_with_kills(60, 80);
}

TEST_CASE("a hub for programs of others", "[.server]") {
  // Serves until the file "end" is there: for hub_judge.sh.
  const std::filesystem::path folder = std::getenv("HUB_FOLDER");
  CopyEnvironment env;
  env.hub.state.page = 2;
  for (const auto& [name, file] : env.files()) {
    std::filesystem::create_directories((folder / "files" / name).parent_path());
    std::ofstream(folder / "files" / name, std::ios::binary) << file.bytes;
  }
  std::ofstream(folder / "url") << env.hub.url() << std::flush;
  while (!std::filesystem::exists(folder / "end")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}
