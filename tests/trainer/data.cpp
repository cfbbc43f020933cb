#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.data;
import tessera.app.config;
import tessera.runs;

namespace runs = tessera::runs;
using namespace tessera::app;
using tessera::data::Tokens;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::Ids;
using trainer_test::input_error;

namespace {

/// A .npy file as numpy.save writes it.
std::string npy(const std::string& header, const std::string& data, int version = 1) {
  std::string text = "\x93NUMPY";
  text += static_cast<char>(version);
  text += '\0';
  text += static_cast<char>(header.size() & 0xFF);
  text += static_cast<char>(header.size() >> 8);
  if (version > 1) {
    text += std::string(2, '\0');
  }
  return text + header + data;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string header(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }       \n";
}

runs::RunSpec config_of(const std::string& text) { return parse_config(text, "run.toml"); }

std::string npy_error(const Folder& folder, const std::string& bytes) {
  const std::string file = folder.write("bad.npy", bytes);
  return input_error([&] { Tokens::from_npy(std::vector<std::string>{file}, 100).check_all(); });
}

std::string data_error(const std::string& text) {
  return input_error([&] { runs::Dataset(config_of(text), 0); });
}

/// A config over a file with the text 0, 1, 2, ... (as bytes + 1, so that it is text).
std::string counting_config(const Folder& folder, int tokens, const std::string& more) {
  std::string text;
  for (int i = 0; i < tokens; ++i) {
    text += static_cast<char>(1 + i % 250);
  }
  return "data.text = [\"" + folder.write("count.txt", text) + "\"]\n" + more;
}

}  // namespace

TEST_CASE("text is found in files, folders and patterns, in order and once") {
  const Folder folder;
  const std::string b = folder.write("texts/b.pod", "b");
  const std::string a = folder.write("texts/a/z.txt", "z");
  folder.write("texts/.hidden/x", "x");
  folder.write("texts/empty", "");
  const std::string other = folder.write("other.txt", "o");
  const std::string texts = (folder.path() / "texts").string();
  std::filesystem::create_directory_symlink(texts, folder.path() / "texts2");
  using Paths = std::vector<std::filesystem::path>;
  CHECK(runs::find_text_files(std::vector<std::string>{other, texts}).files == Paths{other, a, b});
  CHECK(runs::find_text_files(std::vector<std::string>{b, texts}).files == Paths{b, a});
  CHECK(runs::find_text_files(std::vector<std::string>{texts + "*"}).files == Paths{a, b});
  CHECK(runs::find_text_files(std::vector<std::string>{texts + "/*.p?d"}).files == Paths{b});
}

TEST_CASE("links below a folder are followed, round in a circle too, and each file is read once") {
  const Folder folder;
  namespace fs = std::filesystem;
  const std::string a = folder.write("texts/b/a.txt", "a");
  folder.write("far/inner/z.txt", "z");
  folder.write("far/y.txt", "y");
  const fs::path texts = folder.path() / "texts";
  fs::create_directory_symlink("../far", texts / "a_link");  // to another folder
  fs::create_directory_symlink("..", texts / "b/up");        // to itself
  fs::create_directory_symlink("../../texts", folder.path() / "far/inner/back");
  fs::create_directory_symlink("b", texts / "0_same");  // changes no order
  fs::create_symlink("../far/y.txt", texts / "y_again.txt");
  using Paths = std::vector<fs::path>;
  const runs::TextFiles found = runs::find_text_files(std::vector<std::string>{texts.string()});
  CHECK(found.files == Paths{texts / "a_link/inner/z.txt", texts / "a_link/y.txt", a});
  CHECK(found.left_out.empty());
}

TEST_CASE("what is below a folder and no text is named") {
  const Folder folder;
  namespace fs = std::filesystem;
  folder.write("texts/a.txt", "a");
  folder.write("texts/.git/config", "x");
  folder.write("texts/.hidden", "x");
  folder.write("texts/b/empty", "");
  const std::string texts = (folder.path() / "texts").string();
  REQUIRE(::mkfifo((texts + "/b/pipe").c_str(), 0600) == 0);
  fs::create_symlink("/nowhere/at/all", texts + "/gone");
  fs::create_symlink("round", texts + "/round");
  fs::create_symlink("/dev/null", texts + "/null");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  texts.copy(address.sun_path, sizeof(address.sun_path) - 8);
  std::strcat(address.sun_path, "/sock");
  const int bound = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(::bind(bound, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  ::close(bound);
  const runs::TextFiles found = runs::find_text_files(std::vector<std::string>{texts});
  CHECK(found.files.size() == 1);
  CHECK(found.left_out == "2 hidden, 1 empty, 1 device (" + texts +
                              "/null), 2 links that lead nowhere (" + texts + "/gone, " + texts +
                              "/round), 1 pipe (" + texts + "/b/pipe), 1 socket (" + texts +
                              "/sock)");
}

TEST_CASE("folders of text that cannot be read are refused") {
  const Folder folder;
  folder.write("texts/a.txt", "a");
  folder.write("texts/b/b.txt", "b");
  const std::string closed = (folder.path() / "texts/b").string();
  REQUIRE(::chmod(closed.c_str(), 0) == 0);
  const uid_t user = ::geteuid();
  if (user == 0) {
    REQUIRE(::seteuid(65534) == 0);  // root reads everything
  }
  std::vector<std::string> errors;
  for (const char* const name : {"texts", "texts/*/*.txt"}) {
    const std::string path = (folder.path() / name).string();
    errors.push_back(input_error([&] { runs::find_text_files(std::vector<std::string>{path}); }));
  }
  REQUIRE(::seteuid(user) == 0);
  ::chmod(closed.c_str(), 0700);
  for (const std::string& error : errors) {
    has(error, "b: the folder cannot be read: Permission denied");
  }
}

TEST_CASE("text that is missing, empty or no text is refused, all at once") {
  const Folder folder;
  const std::string binary = folder.write("b/image.png", std::string("PNG\0x", 5));
  const std::string empty = folder.write("empty.txt", "");
  std::filesystem::create_directory(folder.path() / "hollow");
  const auto error_of = [](std::vector<std::string> names) {
    return input_error([&] { runs::find_text_files(names); });
  };
  has(error_of({"/nowhere.txt"}), "/nowhere.txt: no such file or folder");
  has(error_of({"/nowhere*.txt"}), "the pattern matches no file");
  has(error_of({empty}), "empty.txt: is empty");
  has(error_of({(folder.path() / "hollow").string()}), "the folder holds no text");
  has(error_of({(folder.path() / "b").string()}), "image.png: is not text: byte 3 is zero");
  has(error_of({"/dev/null"}), "is not a regular file");
  const std::string all = error_of({"/nowhere.txt", empty, binary});
  has(all, "3 problems");
  has(all, "nowhere");
  has(all, "image.png");
}

TEST_CASE("a compressed file whose name does not say so, or is wrong, is refused") {
  const Folder folder;
  // What gzip and zstd make of "some text" and the end of a line.
  const std::string gzip(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x2b\xce\xcf\x4d\x55\x28\x49\xad\x28"
      "\xe1\x02\x00\xbc\xe6\x2c\x19\x0a\x00\x00\x00",
      30);
  const std::string zstd("\x28\xb5\x2f\xfd\x20\x0a\x51\x00\x00some text\n", 19);
  const auto error_of = [](const std::string& file) {
    return input_error([&] { runs::find_text_files(std::vector<std::string>{file}); });
  };
  has(error_of(folder.write("a.jsonl", gzip)), "a.jsonl: is compressed by gzip; end its name");
  has(error_of(folder.write("a.txt", zstd)), "a.txt: is compressed by zstd; end its name");
  has(error_of(folder.write("b.txt.zst", gzip)), "the file cannot be unpacked as zstd");
  const std::string right = folder.write("c.txt.zst", zstd);
  CHECK(runs::find_text_files(std::vector<std::string>{right}).files.size() == 1);
}

TEST_CASE(".npy files of every allowed type and version are read") {
  const Folder folder;
  const std::string u16 =
      folder.write("a.npy", npy(header("<u2", "(3,)"), bytes_of<std::uint16_t>({1, 2, 300})));
  const std::string u32 =
      folder.write("b.npy", npy(header("<u4", "(2,)"), bytes_of<std::uint32_t>({4, 70000}), 2));
  const std::string i32 =
      folder.write("c.npy", npy("{\"shape\":(2,),\"fortran_order\":True,\"descr\":\"<i4\"}",
                                bytes_of<std::int32_t>({5, 6}), 3));
  const Tokens tokens = Tokens::from_npy(std::vector<std::string>{u16, u32, i32}, 70001);
  REQUIRE(tokens.size() == 7);
  Ids all(7);
  tokens.read(0, all);
  CHECK(all == Ids{1, 2, 300, 4, 70000, 5, 6});
  Ids middle(3);
  tokens.read(2, middle);
  CHECK(middle == Ids{300, 4, 70000});
  tokens.check_all();
  CHECK_THROWS_AS(tokens.read(5, middle), tessera::Error);
  const Tokens smaller = Tokens::from_npy(std::vector<std::string>{u16, u32}, 300);
  has(input_error([&] { smaller.check_all(); }), "a.npy: token 2 is 300 (expected 0 to 299");
}

TEST_CASE("hostile .npy files are refused") {
  const Folder folder;
  const std::string two = bytes_of<std::uint16_t>({1, 2});
  has(npy_error(folder, ""), "is not a .npy file");
  has(npy_error(folder, "just some text, no array"), "is not a .npy file");
  has(npy_error(folder, npy(header("<u2", "(2,)"), two, 4)), "format 4.0 is unknown");
  has(npy_error(folder, npy(header("<u2", "(2,)"), two).substr(0, 40)), "the file is truncated");
  has(npy_error(folder, npy(header("<u2", "(3,)"), two)), "3 tokens of 2 bytes, but 4 bytes");
  has(npy_error(folder, npy(header("<u2", "(1,)"), two)), "1 tokens of 2 bytes, but 4 bytes");
  has(npy_error(folder, npy(header("<u2", "(9223372036854775809,)"), two)), "truncated or damaged");
  has(npy_error(folder, npy(header("<u2", "(99999999999999999999999,)"), two)), "damaged");
  has(npy_error(folder, npy(header("<u2", "(-2,)"), two)), "not a tuple of sizes");
  has(npy_error(folder, npy(header("<u2", "(1, 2)"), two)), "expected one dimension");
  has(npy_error(folder, npy(header("<u2", "()"), two)), "expected one dimension");
  has(npy_error(folder, npy(header(">u2", "(2,)"), two)), "big-endian");
  has(npy_error(folder, npy("{'descr': [('a', '<u2')], 'shape': (2,)}", two)), "holds records");
  has(npy_error(folder, npy("{'descr': '<u2', 'shape': (2,)}", two)), "is missing");
  has(npy_error(folder, npy("{'descr': '<u2", two)), "damaged");
  has(npy_error(folder, npy("{'descr': '<u2', 'descr': '<u2'}", two)), "repeated key 'descr'");
  has(npy_error(folder, npy(header("<u2", "(2,)") + "x", two)), "there is text after");
  has(npy_error(folder, npy(header("<i4", "(1,)"), bytes_of<std::int32_t>({-1}))), "token 0 is -1");
  // Any prefix of a good file is refused, with an Error and nothing worse.
  const std::string good = npy(header("<u2", "(2,)"), two);
  for (std::size_t length = 0; length < good.size(); ++length) {
    CHECK_FALSE(npy_error(folder, good.substr(0, length)).empty());
  }
}

TEST_CASE("what the error about a type of ids advises keeps every id, or shows that it is none") {
  const Folder folder;
  for (const char* type : {"<i8", "<u8", ">u2", ">i4", "|u1", "<i2"}) {
    INFO(type);
    const std::string error = npy_error(folder, npy(header(type, "(0,)"), ""));
    has(error, std::string("token ids have type '") + type + "'");
    has(error, "write them with numpy.save(FILE, ids.astype('<u4'))");
  }
  for (const char* type : {"<f4", "<f8", "<f2", "|b1", "<U3", "|O", "<c8"}) {
    INFO(type);
    const std::string error = npy_error(folder, npy(header(type, "(0,)"), ""));
    has(error, "these are no whole numbers");
    CHECK(error.find("astype") == std::string::npos);
  }
  // int64 ids as NumPy's astype('<u4') leaves them: modulo 2^32.
  const auto converted = [&](const std::vector<std::int64_t>& ids) {
    std::vector<std::uint32_t> kept;
    for (const std::int64_t id : ids) {
      kept.push_back(static_cast<std::uint32_t>(id));
    }
    const std::string shape = "(" + std::to_string(ids.size()) + ",)";
    return folder.write("ids.npy", npy(header("<u4", shape), bytes_of<std::uint32_t>(kept)));
  };
  const Tokens right =
      Tokens::from_npy(std::vector<std::string>{converted({131999, 65536, 0})}, 132000);
  Ids ids(3);
  right.read(0, ids);
  CHECK(ids == Ids{131999, 65536, 0});
  for (const std::int64_t wrong : {std::int64_t{-100}, std::int64_t{-1}, std::int64_t{132000}}) {
    INFO(wrong);
    const Tokens all = Tokens::from_npy(std::vector<std::string>{converted({0, wrong})}, 132000);
    has(input_error([&] { all.check_all(); }), "token 1 is ");
  }
}

TEST_CASE("validation is the last part of the tokens and never trained on") {
  const Folder folder;
  const std::string config = counting_config(folder, 200, R"(
data.seq_len = 8
data.validation = 0.25
train.batch = 2
)");
  const runs::Dataset data(config_of(config), 256);
  CHECK(data.training_tokens() == 150);
  CHECK(data.windows() == 18);
  CHECK(data.validation_batches() == 3);  // 50 tokens: 6 windows
  std::int64_t largest = 0;
  for (int position = 0; position < 18; ++position) {
    const runs::Batch batch = data.rows(position / 2, position % 2, 1);
    largest = std::max(largest, std::ranges::max(batch.targets));
  }
  CHECK(largest <= 150);  // token i is i + 1
  CHECK(data.validation_rows(0, 0, 1).inputs[0] == 151);
  CHECK(data.validation_rows(2, 1, 1).inputs[0] == 151 + 5 * 8);

  const runs::Dataset fewer(config_of(config + "data.validation_windows = 3\n"), 256);
  CHECK(fewer.validation_batches() == 1);  // two windows, evenly spread over the six
  CHECK(fewer.validation_rows(0, 1, 1).inputs[0] == 151 + 3 * 8);
}

TEST_CASE("data that are too short say what was needed") {
  const Folder folder;
  const std::string text = counting_config(folder, 40, "");
  has(data_error(text + "data.seq_len = 8\ndata.validation = 0\ntrain.batch = 5\n"),
      "40 training tokens make 4 windows of 8 (expected at least 5, one batch: 41 tokens)");
  has(data_error(text + "data.seq_len = 8\ndata.validation = 0.1\ntrain.batch = 2\n"),
      "data.validation: too short: 4 tokens make 0 windows of 8");
  has(data_error("data.text = [\"/nowhere\"]\n"), "/nowhere: no such file");
  has(data_error("data.tokens = [\"/nowhere.npy\"]\nmodel.vocab = 10\n"),
      "/nowhere.npy: cannot be read: No such file or directory");
  has(data_error("data.tokens = [\"/tmp\"]\nmodel.vocab = 10\n"), "/tmp: is not a regular file");
}

TEST_CASE("a batch must divide over the data axes and their micro-batches") {
  const std::string text = "data.text = [\"a\"]\ntrain.batch = 12\n";
  runs::check_batch_division(config_of(text), 4);
  has(input_error([&] { runs::check_batch_division(config_of(text), 5); }),
      "run.toml:2: train.batch: 12 sequences cannot be divided equally over the 5 ranks");
  runs::check_batch_division(config_of(text + "train.micro_batch = 3\n"), 4);
  has(input_error(
          [&] { runs::check_batch_division(config_of(text + "train.micro_batch = 2\n"), 4); }),
      "run.toml:3: train.micro_batch: 2 does not divide a rank's 3 sequences");
}
