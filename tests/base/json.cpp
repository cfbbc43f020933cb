// JSON from outside: what is wrong with it is found within the limits of depth, values and bytes.
#include "tessera/json.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "catch.hpp"
#include "folder.hpp"
#include "tessera/input_file.hpp"
#include "tessera/json_reading.hpp"
#include "tessera/shown.hpp"
#include "texts.hpp"

using tessera::parse_json_object;
using tessera::read_json_object;
using tessera::testing::Folder;
using tessera::testing::has;

namespace {

std::string nested(std::size_t levels) {
  return R"({"a": )" + std::string(levels - 1, '[') + std::string(levels - 1, ']') + "}";
}

}  // namespace

TEST_CASE("an object is parsed, anything else is a problem") {
  const auto good = parse_json_object(R"({"a": [1, -2.5, "b", null], "c": {"a": true}})");
  CHECK(good.problem.empty());
  CHECK(good.value == nlohmann::json({{"a", {1, -2.5, "b", nullptr}}, {"c", {{"a", true}}}}));
  has(parse_json_object("[1]").problem, "not a JSON object");
  has(parse_json_object("{").problem, "not JSON");
  has(parse_json_object("").problem, "not JSON");
  has(parse_json_object("{} {}").problem, "not JSON");
  has(parse_json_object("{\"\xff\": 1}").problem, "not JSON");
  has(parse_json_object(R"({"a": 1e999})").problem, "out of range");
  has(parse_json_object(R"({"b": {"a": 1, "a": 2}})").problem, "the name 'a' occurs twice");
  // The same name in two objects is no repetition.
  CHECK(parse_json_object(R"({"a": {"a": 1}, "b": {"a": 1}})").problem.empty());
}

TEST_CASE("depth, values and bytes are bounded while the text is parsed") {
  CHECK(parse_json_object(nested(64)).problem.empty());
  has(parse_json_object(nested(65)).problem, "nested too deeply (at most 64 levels)");
  // It never ends, and is refused for its depth all the same: nothing after it was looked at.
  has(parse_json_object(R"({"a": )" + std::string(1'000'000, '[')).problem, "too deeply");
  has(parse_json_object(R"({"a": {"b": {}}})", {.depth = 2}).problem, "too deeply");
  const std::string three = R"({"a": [1, 2]})";  // the object, a name, a list, two numbers
  CHECK(parse_json_object(three, {.values = 5}).problem.empty());
  has(parse_json_object(three, {.values = 4}).problem, "too many values (at most 4)");
  CHECK(parse_json_object(three, {.bytes = three.size()}).problem.empty());
  has(parse_json_object(three, {.bytes = three.size() - 1}).problem, "too large");
}

TEST_CASE("an ordered object has its members in the order of the text") {
  const Folder folder;
  const std::string path = folder / "a.json";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return tessera::read_ordered_json_object(path);
  };
  const std::string text = R"({"b":1,"a":{"z":[1,{"y":2,"x":3}],"c":null},"B":true})";
  CHECK(read(text).value.dump() == text);
  has(read(R"({"b": {"a": 1, "c": 2, "a": 3}})").problem, "the name 'a' occurs twice");
  has(read(R"({"a": [{"a": 1}, 2], "b": )").problem, "not JSON");
  // Many members, whose names must not be compared with all others.
  std::string many = "{";
  for (int i = 0; i < 300'000; ++i) {
    many += "\"" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  }
  many.back() = '}';
  CHECK(read(many).value.size() == 300'000);
}

TEST_CASE("a long text is shown by its beginning, its end and its length") {
  CHECK(tessera::shown("short") == "short");
  CHECK(tessera::shown(std::string(120, 'a')) == std::string(120, 'a'));
  CHECK(tessera::shown("0123456789abc", 9) == "012345...abc (13 bytes)");
  const std::string large = tessera::shown(std::string(2'000'000, 'a'));
  CHECK(large == std::string(80, 'a') + "..." + std::string(40, 'a') + " (2000000 bytes)");
  // Not within a character: each of these has two bytes.
  CHECK(tessera::shown("\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4", 9) ==
        "\u00e4\u00e4\u00e4...\u00e4 (12 bytes)");
  CHECK(tessera::shown("\x80\x80\x80\x80\x80\x80\x80\x80", 3) == "... (8 bytes)");
}

TEST_CASE("a file's size is compared before it is read") {
  const Folder folder;
  const std::string path = folder / "a.json";
  std::ofstream(path) << R"({"a": 1})";
  CHECK(read_json_object(path).value == nlohmann::json({{"a", 1}}));
  // A hole of 1 TB: reading it would end the test.
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);
  has(read_json_object(path).problem, "too large (expected at most 100000000 bytes");
  has(read_json_object(folder / "none").problem, "cannot be read");
  has(read_json_object(folder.path()).problem, "not a regular file");
  has(read_json_object("/dev/zero").problem, "not a regular file");
}

TEST_CASE("a member that is missing or of another type is an error with the file's name") {
  const auto document = parse_json_object(
      R"({"n": 3, "big": 18446744073709551615, "real": 1e300, "text": "a", "flag": true, "list": []})");
  const auto error = [&](auto read) -> std::string {
    try {
      tessera::reading_json("a.json", [&] { static_cast<void>(read(document.value)); }, "advice");
    } catch (const std::exception& thrown) {
      return thrown.what();
    }
    return "no error";
  };
  using tessera::json_member;
  CHECK(error([](const auto& json) { return json_member<int>(json, "n"); }) == "no error");
  const std::string form = "a.json: it has another form than expected: ";
  CHECK(error([](const auto& json) { return json_member<int>(json, "none"); }) ==
        form + "'none' is missing; advice");
  CHECK(error([](const auto& json) { return json_member<int>(json["n"], "n"); }) ==
        form + "'n' is missing; advice");
  CHECK(error([](const auto& json) { return json_member<std::int64_t>(json, "big"); }) ==
        form + "'big' is not a whole number in range; advice");
  CHECK(error([](const auto& json) { return json_member<std::int64_t>(json, "real"); }) ==
        form + "'real' is not a whole number in range; advice");
  CHECK(error([](const auto& json) { return json_member<float>(json, "real"); }) ==
        form + "'real' is not a number; advice");
  CHECK(error([](const auto& json) { return json_member<bool>(json, "n"); }) ==
        form + "'n' is not true or false; advice");
  CHECK(error([](const auto& json) { return json_member<std::string>(json, "flag"); }) ==
        form + "'flag' is not a text; advice");
  // The library's own exceptions too, without their names.
  CHECK(error([](const auto& json) { return json.at("none"); }) ==
        form + "key 'none' not found; advice");
  CHECK(error([](const auto& json) {
          return json.at("text").template get<int>();
        }).starts_with(form + "type must be number"));
  CHECK(error([](const auto&) -> int { throw std::runtime_error("other"); }) == "other");
}

TEST_CASE("a file of a text is read within its size, and a line within its length") {
  const Folder folder;
  const std::string path = folder / "a.txt";
  std::ofstream(path) << "ab\n\ncdefg";
  const auto error = [&](const std::string& file, std::size_t most) -> std::string {
    try {
      return "read: " + tessera::input_text(file, most);
    } catch (const std::exception& thrown) {
      return thrown.what();
    }
  };
  CHECK(error(path, 9) == "read: ab\n\ncdefg");
  CHECK(error(path, 8).starts_with(path + ": the file is too large (expected at most 8 bytes"));
  CHECK(error("/dev/null", 8) == "read: ");
  CHECK(error("/dev/zero", 8).starts_with("/dev/zero: the file is too large"));
  CHECK(error(folder.path(), 8) == folder.path().string() + ": it cannot be read (Is a directory)");
  CHECK(error(folder / "none", 8).ends_with(": it cannot be read (No such file or directory)"));
  std::ifstream stream(path, std::ios::binary);
  std::string line;
  const auto next = [&](std::size_t most) { return tessera::next_line(stream, path, line, most); };
  CHECK((next(2) && line == "ab"));
  CHECK((next(2) && line.empty()));
  CHECK((next(5) && line == "cdefg"));
  CHECK_FALSE(next(5));
  std::ifstream endless("/dev/zero", std::ios::binary);
  CHECK_THROWS_WITH(tessera::next_line(endless, "a.txt", line, 100),
                    "a.txt: a line is too long (expected at most 100 bytes, got more)");
  std::ifstream is_folder(folder.path(), std::ios::binary);
  CHECK_FALSE(tessera::next_line(is_folder, folder.path(), line, 100));
}

TEST_CASE("whole numbers that JSON's own types cannot hold are refused where they would change") {
  CHECK(tessera::parse_ordered_json(R"([18446744073709551615, -9223372036854775808, 1e30, 0.1])")
            .dump() == "[18446744073709551615,-9223372036854775808,1e+30,0.1]");
  CHECK_THROWS_WITH(tessera::parse_ordered_json(R"({"id": 123456789012345678901234567890})"),
                    "JSON: it has another form than expected: the whole number "
                    "123456789012345678901234567890 has more than 64 bits");
  CHECK_THROWS_WITH(tessera::parse_ordered_json("[1,"),
                    "JSON: it has another form than expected: it is not JSON in UTF-8, see byte 4");
}
