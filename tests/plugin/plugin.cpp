// Finding and loading as it should go.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.plugin;

#include "greeter.hpp"

using namespace tessera;
namespace fs = std::filesystem;

namespace {

class Resident : public Greeter {
 public:
  std::string greet() const override { return "at home"; }
};

}  // namespace

TEST_CASE("a plugin is found by kind and name, and loaded only when it is asked for") {
  const PluginFolder folder;
  const std::string file = folder.copy("Hello", "any_name.so");
  const std::string other = folder.copy("Misbehaving", "other.so");
  plugin::declare_kind<Greeter>();
  plugin::Host host({{folder.path().string()}, false, false});
  CHECK(host.names("greeter") == std::vector<std::string>{"Hello", "Misbehaving"});
  CHECK(host.loaded().empty());
  CHECK(host.find<Greeter>("Hello")("you")->greet() == "hello, you");
  REQUIRE(host.loaded().size() == 1);
  CHECK(host.loaded().front().name == "Hello");
  CHECK(host.loaded().front().version == "1.2.3");
  CHECK(host.loaded().front().file == file);

  const std::vector<plugin::PluginFile> all = host.list();
  REQUIRE(all.size() == 2);
  CHECK(all[0].loaded);
  CHECK_FALSE(all[1].loaded);
  CHECK(all[1].file == other);
}

TEST_CASE("loading again, or the same content from elsewhere, changes nothing") {
  const PluginFolder folder;
  const std::string first = folder.copy("Hello", "a.so");
  const std::string second = folder.copy("Hello", "b.so");
  plugin::Host host({{folder.path().string()}, false, false});
  const auto* factory = &host.find<Greeter>("Hello");
  host.load(first);
  host.load(second);
  CHECK(&host.find<Greeter>("Hello") == factory);
  CHECK(host.loaded().size() == 1);
}

TEST_CASE("a name that nobody provides brings the nearest one and what was refused") {
  const PluginFolder folder;
  folder.copy("Hello", "a.so");
  folder.write({}, "empty.so");
  plugin::Host host({{folder.path().string()}, false, false});
  CHECK_THROWS_WITH(host.find<Greeter>("Hallo"), Catch::Contains("did you mean 'Hello'?") &&
                                                     Catch::Contains("empty.so: not an ELF file"));
}

TEST_CASE("the hash of what is loaded does not depend on the order") {
  const std::string hello = std::string(LIBRARIES) + "/Hello.so";
  const std::string other = std::string(LIBRARIES) + "/Misbehaving.so";
  plugin::declare_kind<Greeter>();
  plugin::Host none;
  plugin::Host one;
  plugin::Host two;
  one.load(hello);
  const std::uint64_t only_hello = one.loaded_hash();
  one.load(other);
  two.load(other);
  two.load(hello);
  CHECK(one.loaded_hash() == two.loaded_hash());
  CHECK(one.loaded_hash() != only_hello);
  CHECK(only_hello != none.loaded_hash());
}

TEST_CASE("the hash of what is loaded tells contents of one name and version apart") {
  const PluginFolder folder;
  plugin::declare_kind<Greeter>();
  const auto hash_of = [](const std::string& file) {
    plugin::Host host({{}, false, false});
    host.load(file);
    return host.loaded_hash();
  };
  const auto described = [](plugin::GateStamp& stamp) {
    std::strcpy(stamp.description, "other content");
  };
  const std::string other = folder.write(with_stamp(content_of("Hello"), described), "b.so");
  const std::uint64_t hello = hash_of(folder.copy("Hello", "a.so"));
  CHECK(hash_of(std::string(LIBRARIES) + "/Hello.so") == hello);
  CHECK(hash_of(other) != hello);
}

TEST_CASE("the environment's path takes absolute entries and refuses the others") {
  const PluginFolder folder;
  const std::string file = folder.copy("Hello", "a.so");
  const Setting setting("TESSERA_PLUGIN_PATH",
                        "here:" + folder.path().string() + "::/no/such/folder");
  const auto found = plugin::search_libraries({{}, true, false});
  REQUIRE(found.size() == 3);
  CHECK(found[0].path == "here");
  CHECK(found[0].refusal.find("relative path") == 0);
  CHECK(found[1].path == file);
  CHECK(found[1].refusal.empty());
  CHECK(found[2].refusal == "does not exist");
}

TEST_CASE("named paths come before the environment, the user's folder before the installed one") {
  const PluginFolder named;
  const PluginFolder path;
  const PluginFolder data;
  const std::string first = named.copy("Hello", "a.so");
  const std::string second = path.copy("Hello", "b.so");
  fs::create_directories(data.path() / "tessera" / "plugins");
  const std::string third = data.copy("Hello", "tessera/plugins/c.so");
  const Setting environment("TESSERA_PLUGIN_PATH", path.path().string());
  const Setting home("XDG_DATA_HOME", data.path().string());
  const auto found = plugin::search_libraries({{first}, true, true});
  REQUIRE(found.size() >= 3);
  CHECK(found[0].path == first);
  CHECK(found[1].path == second);
  CHECK(found[2].path == third);
  CHECK(fs::path(plugin::installed_plugin_folder()).parent_path().filename() == "tessera");
}

TEST_CASE("the working directory is never searched") {
  const PluginFolder folder;
  folder.copy("Hello", "Hello.so");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  plugin::Host host;
  for (const plugin::PluginFile& found : host.list()) {
    CHECK(found.file.find(folder.path().string()) == std::string::npos);
  }
  CHECK_THROWS_AS(host.find<Greeter>("Hello"), Error);
  fs::current_path(before);
}

TEST_CASE("the program's own factories stand beside the plugins'") {
  plugin::Host host({{std::string(LIBRARIES) + "/Hello.so"}, false, false});
  host.add<Greeter>("Resident", [](const std::string&) { return std::make_unique<Resident>(); });
  CHECK(host.find<Greeter>("Resident")("")->greet() == "at home");
  CHECK(host.names("greeter") == std::vector<std::string>{"Hello", "Resident"});
  host.find<Greeter>("Hello");
  CHECK_THROWS_WITH(
      host.add<Greeter>("Hello", [](const std::string&) { return std::make_unique<Resident>(); }),
      Catch::Contains("registered by"));
}

TEST_CASE("the process has one host, configured before its first use") {
  const PluginFolder folder;
  folder.copy("Hello", "a.so");
  plugin::configure_host({{folder.path().string()}, false, false});
  CHECK(plugin::host().find<Greeter>("Hello")("you")->greet() == "hello, you");
  CHECK_THROWS_AS(plugin::configure_host({}), Error);
  CHECK(plugin::host().loaded().size() == 1);
}
