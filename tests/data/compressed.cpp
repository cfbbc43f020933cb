// The cache of data: compressed files, what is in them by position, damaged ones, their blocks;
// what reading large data has found.
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tokenize;
import tessera.data;

#include "support.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace tessera::data;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;

/// A folder, and the cache in it.
class DataFolder : public Folder {
 public:
  DataFolder() { setenv("TESSERA_DATA_CACHE", cache().c_str(), 1); }
  std::string cache() const { return *this / "cache"; }
  std::vector<fs::path> kept(const std::string& extension = ".blocks") const {
    std::vector<fs::path> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(cache())) {
      if (entry.path().extension() == extension) found.push_back(entry.path());
    }
    return found;
  }
};

/// One member, by zlib.
std::string gzip(std::string_view text, int level = 6) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, level, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

/// One frame, with a checksum; `window`: the logarithm of its size in bytes.
std::string zstd(std::string_view text, int window = 0) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  if (window > 0) {
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  }
  std::string packed(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_inBuffer in{text.data(), text.size() / 2, 0};
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  if (window > 0) {  // before the size of all is known
    ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush);
  }
  in.size = text.size();
  while (ZSTD_compressStream2(context, &out, &in, ZSTD_e_end) != 0) {
  }
  packed.resize(out.pos);
  ZSTD_freeCCtx(context);
  return packed;
}

/// Lines that compress neither well nor badly.
std::string lines(int count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += R"({"prompt": "number )" + std::to_string(random() % 1000000) +
            std::string(random() % 90, '.') + R"(", "completion": " )" + std::to_string(i) +
            "\"}\n";
  }
  return text;
}

std::string content(const std::string& path) {
  const DataFile file = DataFile::content_of(path);
  std::string bytes(file.size(), '\0');
  DataFile::Handle(file).read(file, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::string content_error(const std::string& path) {
  return error_of([&] { content(path); });
}

std::shared_ptr<const ExampleMaker> maker(const std::string& identity = "") {
  return std::make_shared<const ExampleMaker>(small_tokenizer(), nullptr, TrainOn::answers,
                                              ExampleOptions{.identity = identity});
}

/// Another tokenizer, of which the test says that it is the one of maker().
std::shared_ptr<const ExampleMaker> other_maker(const std::string& identity) {
  tokenize::OpenedTokenizer bytes;
  bytes.kind = "bytes";
  bytes.tokenizer = tokenize::make_tokenizer("bytes");
  return std::make_shared<const ExampleMaker>(bytes, nullptr, TrainOn::answers,
                                              ExampleOptions{.identity = identity});
}

}  // namespace

TEST_CASE("the records of compressed files are those of the files in them") {
  const DataFolder folder;
  const std::string text = lines(4000);
  REQUIRE(text.size() > (std::size_t{256} << 10));  // several blocks
  const std::size_t half = text.size() / 2 + 7;
  const std::string one = text.substr(0, half);
  const std::string other = text.substr(half);
  const std::vector<std::string> plain = {folder.write("a.jsonl", text)};
  const Documents expected(plain, maker(), {.longest = 100});
  REQUIRE(expected.size() == 4000);
  for (const auto& [name, packed] : {
           std::pair<std::string, std::string>{"one.jsonl.gz", gzip(text)},
           {"stored.jsonl.gz", gzip(text, 0)},
           {"members.jsonl.gz", gzip(one) + gzip("") + gzip(other)},
           {"tape.jsonl.gz", gzip(text) + std::string(1000, '\0')},
           {"one.jsonl.zst", zstd(text)},
           {"frames.jsonl.zst", zstd(one) + zstd("") + zstd(other)},
       }) {
    INFO(name);
    const std::vector<std::string> files = {folder.write(name, packed)};
    const Documents documents(files, maker(), {.longest = 100});
    REQUIRE(documents.size() == expected.size());
    CHECK(documents.content_hash() == expected.content_hash());
    CHECK(documents.where(3999) == files[0] + ":4000");
    std::mt19937 random(2);
    for (int i = 0; i < 200; ++i) {
      const auto which = static_cast<std::int64_t>(random() % 4000);
      CHECK(documents.read(which).ids == expected.read(which).ids);
    }
  }
}

TEST_CASE("texts in compressed files have the tokens of the files in them") {
  const DataFolder folder;
  std::string text;
  for (int i = 0; text.size() < (std::size_t{700} << 10); ++i) {
    text += "The " + std::to_string(i) + "th line has a few words.\n";
  }
  const std::vector<std::string> plain = {folder.write("a.txt", text),
                                          folder.write("b.txt", "end\n")};
  const std::vector<std::string> packed = {folder.write("a.txt.zst", zstd(text)),
                                           folder.write("b.txt.gz", gzip("end\n"))};
  const EncodedText expected = EncodedText::from_files(plain, maker());
  const EncodedText found = EncodedText::from_files(packed, maker());
  const Tokens expected_bytes = Tokens::from_bytes(plain);
  const Tokens found_bytes = Tokens::from_bytes(packed);
  const auto compare = [](const TokenSource& left, const TokenSource& right) {
    REQUIRE(left.size() == right.size());
    CHECK(left.content_hash() == right.content_hash());
    for (const std::int64_t begin : {std::int64_t{0}, left.size() / 3, left.size() - 1000}) {
      std::vector<std::int64_t> a(1000);
      std::vector<std::int64_t> b(1000);
      left.read(begin, a);
      right.read(begin, b);
      CHECK(a == b);
    }
  };
  compare(expected, found);
  compare(expected_bytes, found_bytes);
}

TEST_CASE("bytes at any position of a compressed file are those of its content") {
  const DataFolder folder;
  const std::string text = lines(6000, 3);
  const DataFile file = DataFile::content_of(folder.write("a.gz", gzip(text)));
  REQUIRE(file.size() == text.size());
  const DataFile::Handle handle(file);
  std::mt19937 random(4);
  for (int i = 0; i < 300; ++i) {
    const std::size_t begin = random() % text.size();
    const std::size_t count = std::min<std::size_t>(random() % 300000, text.size() - begin);
    std::string bytes(count, '\0');
    handle.read(file, begin, std::as_writable_bytes(std::span(bytes)));
    REQUIRE(bytes == text.substr(begin, count));
  }
  CHECK(first_bytes(file.path(), 1000) == text.substr(0, 1000));
  CHECK(first_bytes(file.path(), text.size() + 5) == text);
}

TEST_CASE("a compressed file that is cut short is refused, wherever it is cut") {
  const DataFolder folder;
  const std::string text = lines(20);
  for (const auto& [name, packed] : {std::pair<std::string, std::string>{"a.gz", gzip(text)},
                                     {"a.zst", zstd(text)},
                                     {"b.gz", gzip(text) + gzip(text)},
                                     {"b.zst", zstd(text) + zstd(text)}}) {
    const std::size_t whole = name[0] == 'a' ? packed.size() : packed.size() / 2;
    for (std::size_t size = 0; size < packed.size(); ++size) {
      INFO(name << " " << size);
      const std::string path = folder.write(name, std::string_view(packed).substr(0, size));
      if (size == whole) {
        CHECK(content(path) == text);  // the first member
      } else {
        CHECK_THAT(content_error(path), Contains("it ends too early"));
      }
    }
    CHECK(folder.kept(".made").empty());
  }
}

TEST_CASE("a byte of a compressed file that is changed gives an error or the same content") {
  const DataFolder folder;
  const std::string text = lines(8);
  for (const auto& [name, packed] :
       {std::pair<std::string, std::string>{"a.gz", gzip(text)}, {"a.zst", zstd(text)}}) {
    std::size_t refused = 0;
    for (std::size_t at = 0; at < packed.size(); ++at) {
      for (const char change : {'\x01', '\x80'}) {
        std::string damaged = packed;
        damaged[at] = static_cast<char>(damaged[at] ^ change);
        const std::string path = folder.write(name, damaged);
        std::string found;
        const std::string error = error_of([&] { found = content(path); });
        CHECK((error != "" || found == text));
        refused += error.empty() ? 0 : 1;
      }
    }
    CHECK(refused > packed.size() * 3 / 2);
  }
}

TEST_CASE("what no compressed file is, is refused with the file") {
  const DataFolder folder;
  const std::string text = lines(20);
  CHECK_THAT(content_error(folder.write("a.gz", text)),
             Contains("a.gz: the file cannot be unpacked as gzip: incorrect header check"));
  CHECK_THAT(content_error(folder.write("a.zst", gzip(text))),
             Contains("the file cannot be unpacked as zstd: "));
  CHECK_THAT(content_error(folder.write("a.gz", gzip(text) + "more")),
             Contains("behind its end are other bytes"));
  CHECK_THAT(content_error(folder.write("a.zst", zstd(text) + "more")),
             Contains("behind its end are other bytes"));
  CHECK_THAT(content_error(folder.write("a.zst", zstd(text, 28))),
             Contains("it needs a window of more than 128 MiB"));
  CHECK(content(folder.write("b.zst", zstd(text, 27))) == text);
  CHECK_THAT(content_error(folder / "none.gz"), Contains("none.gz: cannot be read"));
}

TEST_CASE("a compressed file is unpacked once, and again when it has changed") {
  const DataFolder folder;
  const std::string text = lines(50);
  const auto padded = [](const std::string& content) {
    std::string packed = gzip(content);
    REQUIRE(packed.size() < 4096);
    packed.resize(4096);
    return packed;
  };
  const std::string path = folder.write("a.gz", padded(text));
  CHECK(content(path) == text);
  REQUIRE(folder.kept().size() == 1);
  const fs::path kept = folder.kept()[0];
  const auto made = fs::last_write_time(kept);
  CHECK(content(path) == text);
  CHECK(folder.kept().size() == 1);
  CHECK(fs::last_write_time(kept) == made);
  struct stat status{};
  REQUIRE(stat(folder.cache().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777U) == 0700);

  const DataFile before = DataFile::content_of(path);
  const DataFile::Handle handle(before);
  const auto time = fs::last_write_time(path);
  const std::string changed = lines(50, 9);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << padded(changed);
  std::string bytes(10, '\0');
  CHECK_THAT(error_of([&] { handle.read(before, 0, std::as_writable_bytes(std::span(bytes))); }),
             Contains("while the run read it"));
  fs::last_write_time(path, time);  // as programs that copy do
  CHECK(content(path) == changed);
}

TEST_CASE("blocks of the cache that are damaged or lost are made again or named") {
  const DataFolder folder;
  const std::string text = lines(5000);
  const std::string path = folder.write("a.gz", gzip(text));
  CHECK(content(path) == text);
  const fs::path kept = folder.kept().at(0);
  const std::string whole = read_file(kept);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{10}, whole.size() / 2, whole.size() - 1}) {
    fs::resize_file(kept, size);
    CHECK(content(path) == text);
    CHECK(read_file(kept) == whole);
  }
  for (std::size_t at = whole.size() - 80; at < whole.size(); ++at) {  // the positions, their hash
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    std::ofstream(kept, std::ios::binary) << damaged;
    CHECK(content(path) == text);
  }
  std::string damaged = whole;
  damaged[whole.size() / 2] = static_cast<char>(damaged[whole.size() / 2] ^ 1);
  std::ofstream(kept, std::ios::binary) << damaged;
  CHECK_THAT(content_error(path),
             Contains("a.gz: its unpacked blocks are damaged: " + kept.string()));
  fs::remove(kept);
  const DataFile file = DataFile::content_of(path);
  fs::remove(kept);
  CHECK_THAT(error_of([&] { DataFile::Handle{file}; }),
             Contains("its unpacked blocks cannot be read"));
}

TEST_CASE("of several that need a file's content at once, one unpacks it") {
  const DataFolder folder;
  const std::string text = lines(20000);
  const std::string path = folder.write("a.zst", zstd(text));
  std::vector<std::string> found(4);
  std::vector<std::thread> threads;
  for (std::string& one : found) {
    threads.emplace_back([&] { one = content(path); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(std::ranges::count(found, text) == 4);
  CHECK(folder.kept().size() == 1);
}

TEST_CASE("the cache keeps what runs have read within 30 days, and is the user's alone") {
  const DataFolder folder;
  const std::string first = folder.write("a.gz", gzip("first\n"));
  const std::string second = folder.write("b.gz", gzip("second\n"));
  content(first);
  const fs::path old = folder.kept().at(0);
  const auto days = [](int count) {
    return fs::file_time_type::clock::now() - std::chrono::hours(24 * count);
  };
  fs::last_write_time(old, days(29));
  content(second);
  CHECK(fs::exists(old));
  fs::last_write_time(old, days(29));
  content(first);
  CHECK(fs::last_write_time(old) > days(1));
  fs::last_write_time(old, days(31));
  content(folder.write("c.gz", gzip("third\n")));
  CHECK(!fs::exists(old));
  CHECK(content(first) == "first\n");

  fs::permissions(folder.cache(), fs::perms::all);
  CHECK_THAT(content_error(first), Contains("the cache of data: "));
  fs::permissions(folder.cache(), fs::perms::owner_all);
  setenv("TESSERA_DATA_CACHE", "/proc/none", 1);
  CHECK_THAT(content_error(first),
             Contains("a.gz: cannot be unpacked: ") && Contains("set TESSERA_DATA_CACHE"));
}

TEST_CASE(
    "what reading large data has found is kept, as long as the data and how they are read stay") {
  const DataFolder folder;
  std::string text = lines(50000);
  REQUIRE(text.size() > (std::size_t{4} << 20));
  const std::string path = folder.write("a.jsonl", text);
  const std::vector<std::string> files = {path};
  const DocumentOptions options{.longest = 100, .too_long = TooLong::cut};
  const Documents first(files, maker("one"), options);
  CHECK(folder.kept(".index").size() == 1);
  const std::string hash = first.content_hash();
  CHECK(folder.kept(".index").size() == 2);

  // Where the index is found, nothing is read: the other tokenizer's numbers are not seen.
  const auto is_kept = [&](const std::string& identity, const DocumentOptions& how) {
    const Documents again(files, other_maker(identity), how);
    const bool kept = again.counts().tokens == first.counts().tokens;
    if (kept) {
      CHECK(again.size() == first.size());
      CHECK(again.counts().trained == first.counts().trained);
      CHECK(again.counts().longest == first.counts().longest);
      CHECK(again.where(49999) == first.where(49999));
      CHECK(again.tokens(777) == first.tokens(777));
      CHECK_THAT(error_of([&] { again.read(777); }),
                 Contains("a.jsonl:778: the record has another number of tokens"));
    }
    return kept;
  };
  CHECK(is_kept("one", options));
  CHECK(Documents(files, maker("one"), options).read(777).ids == first.read(777).ids);
  CHECK(Documents(files, maker("one"), options).content_hash() == hash);
  CHECK_FALSE(is_kept("two", options));
  CHECK_FALSE(is_kept("", options));
  for (const DocumentOptions& how :
       {DocumentOptions{.longest = 99, .too_long = TooLong::cut},
        DocumentOptions{.longest = 100, .too_long = TooLong::skip},
        DocumentOptions{.longest = 100, .too_long = TooLong::cut, .skip_bad = true},
        DocumentOptions{.longest = 100,
                        .too_long = TooLong::cut,
                        .forms = RecordForms({{"prompt", "prompt"}})}}) {
    CHECK_FALSE(is_kept("one", how));
  }

  for (const fs::path& file : folder.kept(".index")) {
    std::string damaged = read_file(file);
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
    std::ofstream(file, std::ios::binary) << damaged;
  }
  CHECK_FALSE(is_kept("one", options));  // and is kept of the other tokenizer now
  const auto time = fs::last_write_time(path);
  text[text.find("number") + 1] = 'U';
  std::ofstream(path, std::ios::binary) << text;
  fs::last_write_time(path, time);  // as programs that copy do
  const Documents changed(files, maker("one"), options);
  CHECK(changed.content_hash() != hash);
  CHECK(changed.read(0).ids.size() == static_cast<std::size_t>(changed.tokens(0)));
}

TEST_CASE(
    "what reading large texts has found is kept, and no text is read by an index of another") {
  const DataFolder folder;
  std::string text;
  for (int i = 0; text.size() < (std::size_t{5} << 20); ++i) {
    text += "Line " + std::to_string(i) + " of a long text.\n";
  }
  const std::vector<std::string> files = {folder.write("a.txt.gz", gzip(text))};
  const EncodedText first = EncodedText::from_files(files, maker("one"));
  CHECK(folder.kept(".index").size() == 1);
  const EncodedText again = EncodedText::from_files(files, maker("one"));
  std::vector<std::int64_t> a(5000);
  std::vector<std::int64_t> b(5000);
  first.read(first.size() / 2, a);
  again.read(first.size() / 2, b);
  CHECK(a == b);
  const EncodedText other = EncodedText::from_files(files, other_maker("one"));
  CHECK(other.size() == first.size());
  CHECK_THAT(error_of([&] { other.read(0, a); }),
             Contains("a.txt.gz, byte 0: the text has another number of tokens"));
  CHECK(EncodedText::from_files(files, other_maker("two")).size() > first.size());
}

TEST_CASE("without a cache data are read, and nothing is kept") {
  const DataFolder folder;
  const std::vector<std::string> files = {folder.write("a.jsonl", lines(50000))};
  setenv("TESSERA_DATA_CACHE", "/proc/none", 1);
  CHECK(Documents(files, maker("one"), {.longest = 100}).size() == 50000);
}
