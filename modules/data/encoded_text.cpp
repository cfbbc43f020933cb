module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/utf8.hpp>
#include <utility>
#include <vector>

#include "text_checks.hpp"
module tessera.data;

import tessera.base;
import tessera.tokenize;
import :data_index;
import :lines;
import :unpacked_file;

namespace tessera::data {
namespace {

using tokenize::TokenId;

struct Piece {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint32_t file : 30 = 0;
  std::uint32_t begins : 1 = 0;  // a text
  std::uint32_t ends : 1 = 0;
};
static_assert(sizeof(Piece) == 16);  // all of it is kept in an index

constexpr std::size_t piece_bytes = std::size_t{64} << 10;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Where a piece of the text ends: behind the end of a line that is followed by a word, else
/// behind a blank, else between characters.
std::size_t cut_of(std::string_view text) {
  std::size_t line = 0;
  for (std::size_t at = text.size() - 1; at > text.size() / 2; --at) {
    if (text[at - 1] == '\n') {
      if (!is_blank(text[at])) {
        return at;
      }
      line = line == 0 ? at : line;
    }
  }
  if (line > 0) {
    return line;
  }
  for (std::size_t at = text.size() - 1; at > text.size() / 2; --at) {
    if (text[at] == ' ' && !is_blank(text[at - 1])) {
      return at;
    }
  }
  std::size_t at = text.size() - 1;
  while (at > 1 && is_continuation(text[at])) {
    --at;
  }
  return at;
}

}  // namespace

struct EncodedText::State {
  std::shared_ptr<const ExampleMaker> maker;
  std::optional<RecordForms> records = {};  // of JSONL files
  std::vector<DataFile> files;
  std::vector<Piece> pieces;
  std::vector<std::int64_t> begin;  // token of each piece, and the end
  bool skip_bad = false;
  DocumentCounts counts;

  // Pieces that were read last: windows follow each other within one.
  std::mutex mutex;
  std::deque<std::pair<std::size_t, std::shared_ptr<const std::vector<TokenId>>>> kept;
  std::map<std::size_t, std::vector<std::int64_t>>
      record_lines;  // by file: of its pieces, in order

  std::vector<TokenId> encode(const Piece& piece, std::string_view bytes) const;
  void count(std::span<const Piece> fresh, std::span<const std::string_view> texts, Faults& faults,
             std::span<const std::int64_t> lines);
  void scan_text(std::size_t which, Faults& faults);
  void scan_records(std::size_t which, Faults& faults);
  std::string how() const;
  void write(IndexWriter& out) const;
  void read(IndexReader& in);
  void scan(std::span<const std::string> paths);
  std::shared_ptr<const std::vector<TokenId>> tokens_of(std::size_t piece);
  std::int64_t line_of(std::size_t piece);
};

std::vector<TokenId> EncodedText::State::encode(const Piece& piece, std::string_view bytes) const {
  const std::string record =
      records ? ExampleMaker::text_of(records->standard(bytes)) : std::string();
  std::vector<TokenId> ids;
  maker->texts().encode_to(records ? std::string_view(record) : bytes,
                           {.begins = piece.begins != 0, .ends = piece.ends != 0}, ids);
  return ids;
}

/// Encodes pieces to count their tokens.
void EncodedText::State::count(std::span<const Piece> fresh,
                               std::span<const std::string_view> texts, Faults& faults,
                               std::span<const std::int64_t> lines) {
  std::vector<std::int64_t> sizes(fresh.size());
  std::vector<std::string> problems(fresh.size());
  in_parallel(fresh.size(), [&](std::size_t i) {
    try {
      sizes[i] = std::ssize(encode(fresh[i], texts[i]));
    } catch (const Error& error) {
      problems[i] = error.what();
    }
  });
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    if (!problems[i].empty()) {
      faults.add_bad(files[fresh[i].file].path(), lines[i], problems[i]);
      continue;
    }
    pieces.push_back(fresh[i]);
    begin.push_back(begin.back() + sizes[i]);
  }
}

void EncodedText::State::scan_text(std::size_t which, Faults& faults) {
  const DataFile& file = files[which];
  const DataFile::Handle handle(file);
  std::string block;
  std::int64_t line = 1;
  for (std::size_t at = 0; at < file.size();) {
    constexpr std::size_t at_once = piece_bytes * 64;
    block.resize(std::min(at_once, file.size() - at));
    handle.read(file, at, std::as_writable_bytes(std::span(block)));
    std::vector<Piece> fresh;
    std::vector<std::string_view> texts;
    std::vector<std::int64_t> lines;
    std::size_t used = 0;
    while (used < block.size()) {
      std::string_view rest = std::string_view(block).substr(used);
      const bool last = at + block.size() == file.size() && rest.size() <= piece_bytes;
      if (!last && rest.size() < piece_bytes) {
        break;  // complete it from the file
      }
      rest = rest.substr(
          0, last ? rest.size()
                  : maker->texts().cut_before_special(rest, cut_of(rest.substr(0, piece_bytes))));
      if (const std::size_t bad = invalid_utf8(rest); bad != std::string_view::npos) {
        faults.add(
            file.path(),
            line + std::count(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(bad), '\n'),
            fmt::format("byte 0x{:02X} is not UTF-8; convert the file, or use "
                        "data.tokenizer = \"bytes\"",
                        static_cast<unsigned char>(rest[bad])));
      }
      fresh.push_back({.offset = at + used,
                       .bytes = static_cast<std::uint32_t>(rest.size()),
                       .file = static_cast<std::uint32_t>(which) & 0x3FFFFFFFU,
                       .begins = at + used == 0,
                       .ends = last});
      texts.push_back(rest);
      lines.push_back(line);
      line += std::count(rest.begin(), rest.end(), '\n');
      used += rest.size();
    }
    count(fresh, texts, faults, lines);
    at += used;
  }
}

void EncodedText::State::scan_records(std::size_t which, Faults& faults) {
  const DataFile& file = files[which];
  LineReader reader(file, longest_line);
  std::vector<Line> lines;
  std::vector<std::pair<std::int64_t, std::size_t>> too_long;
  while (reader.next(lines, too_long)) {
    std::vector<Piece> fresh;
    std::vector<std::string_view> texts;
    std::vector<std::int64_t> numbers;
    for (const Line& line : lines) {
      if (is_blank(line.text)) {
        ++counts.blank_lines;
        continue;
      }
      fresh.push_back({.offset = line.offset,
                       .bytes = static_cast<std::uint32_t>(line.text.size()),
                       .file = static_cast<std::uint32_t>(which) & 0x3FFFFFFFU,
                       .begins = 1,
                       .ends = 1});
      texts.push_back(line.text);
      numbers.push_back(line.number);
    }
    count(fresh, texts, faults, numbers);
  }
  faults.add_too_long(file.path(), too_long);
}

/// What decides besides the files what is found in them.
std::string EncodedText::State::how() const {
  const std::string identity = maker->identity();
  return identity.empty() ? ""
                          : fmt::format("texts {} {} {}{}", records.has_value(), skip_bad,
                                        records ? columns_text(*records) : "", identity);
}

void EncodedText::State::write(IndexWriter& out) const {
  out.list(pieces);
  out.list(begin);
  out.number(counts.blank_lines);
  out.number(counts.bad);
  out.text(counts.first_bad);
}

void EncodedText::State::read(IndexReader& in) {
  in.list(pieces);
  in.list(begin);
  in.number(counts.blank_lines);
  in.number(counts.bad);
  in.text(counts.first_bad);
}

void EncodedText::State::scan(std::span<const std::string> paths) {
  for (const std::string& path : paths) {
    files.push_back(records ? DataFile::content_of(path) : text_file(path));
  }
  const DataIndex index(files, how());
  if (const std::optional<std::string> found = index.find()) {
    IndexReader in(*found);
    read(in);
    return;
  }
  begin.push_back(0);
  Faults faults(skip_bad);
  for (std::size_t i = 0; i < files.size(); ++i) {
    records ? scan_records(i, faults) : scan_text(i, faults);
  }
  faults.throw_if_any();
  counts.bad = faults.bad();
  counts.first_bad = faults.first_bad();
  IndexWriter out;
  write(out);
  index.keep(out.bytes());
}

std::shared_ptr<const std::vector<TokenId>> EncodedText::State::tokens_of(std::size_t which) {
  constexpr std::size_t most_kept = 16;
  const std::lock_guard lock(mutex);
  const auto found =
      std::ranges::find_if(kept, [&](const auto& one) { return one.first == which; });
  if (found != kept.end()) {
    return found->second;
  }
  const Piece& piece = pieces[which];
  const DataFile& file = files[piece.file];
  std::string bytes(piece.bytes, '\0');
  DataFile::Handle(file).read(file, piece.offset, std::as_writable_bytes(std::span(bytes)));
  auto tokens = std::make_shared<const std::vector<TokenId>>(encode(piece, bytes));
  if (std::ssize(*tokens) != begin[which + 1] - begin[which]) {
    fail_input({.thing = fmt::format("{}, byte {}", file.path(), piece.offset),
                .wrong = "the text has another number of tokens than when the data were read",
                .expected = fmt::format("{}", begin[which + 1] - begin[which]),
                .got = fmt::format("{}", tokens->size())});
  }
  kept.emplace_front(which, tokens);
  if (kept.size() > most_kept) {
    kept.pop_back();
  }
  return tokens;
}

/// The line of a record. The pieces do not keep it: a pass over the file finds those of all.
std::int64_t EncodedText::State::line_of(std::size_t which) {
  const std::lock_guard lock(mutex);
  const std::size_t file = pieces[which].file;
  const auto first = static_cast<std::size_t>(
      std::ranges::lower_bound(pieces, file, {}, [](const Piece& piece) { return piece.file; }) -
      pieces.begin());
  auto [found, fresh] = record_lines.try_emplace(file);
  if (fresh) {
    std::size_t next = first;
    std::uint64_t at = 0;
    std::int64_t line = 1;
    for_each_piece(files[file], files[file].size(), [&](std::span<const std::byte> bytes) {
      for (const std::byte byte : bytes) {
        if (next < pieces.size() && pieces[next].file == file && pieces[next].offset == at) {
          found->second.push_back(line);
          ++next;
        }
        line += byte == std::byte{'\n'} ? 1 : 0;
        ++at;
      }
    });
  }
  return found->second.at(which - first);
}

EncodedText::EncodedText(std::unique_ptr<State> state) : state_(std::move(state)) {}
EncodedText::EncodedText(EncodedText&&) noexcept = default;
EncodedText::~EncodedText() = default;

EncodedText EncodedText::from_files(std::span<const std::string> files,
                                    std::shared_ptr<const ExampleMaker> maker) {
  auto state = std::make_unique<State>();
  state->maker = std::move(maker);
  state->scan(files);
  return EncodedText(std::move(state));
}

EncodedText EncodedText::from_records(std::span<const std::string> files,
                                      std::shared_ptr<const ExampleMaker> maker, bool skip_bad,
                                      const RecordForms& forms) {
  auto state = std::make_unique<State>();
  state->maker = std::move(maker);
  state->records = forms;
  state->skip_bad = skip_bad;
  state->scan(files);
  return EncodedText(std::move(state));
}

std::int64_t EncodedText::size() const { return state_->begin.back(); }
std::size_t EncodedText::files() const { return state_->files.size(); }
DocumentCounts EncodedText::counts() const { return state_->counts; }

void EncodedText::read(std::int64_t begin, std::span<std::int64_t> out) const {
  if (begin < 0 || begin > size() || std::ssize(out) > size() - begin) {
    fail({.thing = "tokens",
          .wrong =
              fmt::format("no tokens [{}, {}) among {}", begin, begin + std::ssize(out), size())});
  }
  auto which = static_cast<std::size_t>(std::ranges::upper_bound(state_->begin, begin) -
                                        state_->begin.begin()) -
               1;
  while (!out.empty()) {
    const auto tokens = state_->tokens_of(which);
    const auto skip = static_cast<std::size_t>(begin - state_->begin[which]);
    const std::size_t count = std::min(tokens->size() - skip, out.size());
    std::copy_n(tokens->begin() + static_cast<std::ptrdiff_t>(skip), count, out.begin());
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
    ++which;
  }
}

std::vector<TokenRange> EncodedText::places(std::int64_t begin, std::int64_t count) const {
  std::vector<TokenRange> all;
  const std::vector<std::int64_t>& begins = state_->begin;
  auto which =
      static_cast<std::size_t>(std::ranges::upper_bound(begins, begin) - begins.begin()) - 1;
  for (; which + 1 < begins.size() && begins[which] < begin + count; ++which) {
    const std::int64_t first = std::max(begin, begins[which]);
    const std::int64_t end = std::min(begin + count, begins[which + 1]);
    if (first >= end) {
      continue;  // a text without tokens
    }
    const Piece& piece = state_->pieces[which];
    all.push_back({.place = {.file = state_->files[piece.file].path(),
                             .number = state_->records ? state_->line_of(which)
                                                       : static_cast<std::int64_t>(piece.offset),
                             .token = first - begins[which]},
                   .begin = first - begin,
                   .end = end - begin});
  }
  return all;
}

std::string EncodedText::content_hash() const {
  std::string added;
  for (const auto ids : {state_->maker->texts().prefix(), state_->maker->texts().suffix()}) {
    for (const TokenId id : ids) {
      added += fmt::format("{},", id);
    }
    added += ";";
  }
  return hash_of(state_->files, added + (state_->records ? columns_text(*state_->records) : ""));
}

}  // namespace tessera::data
