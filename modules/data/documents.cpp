module;
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;
import tessera.tokenize;
import :data_index;
import :lines;

namespace tessera::data {
namespace {

struct Entry {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint32_t line = 0;
  std::uint32_t tokens = 0;
  std::uint32_t trained = 0;
};

/// What became of a line.
struct Outcome {
  std::vector<Entry> entries = {};  // of its documents
  std::int64_t line = 0;
  std::int64_t whole = 0;  // tokens of the longest document before it was cut
  std::int64_t joined = 0;
  bool blank = false;
  std::string label = {};
  std::set<std::string> labels = {};  // of words
  std::string fault = {};
  bool bad = false;  // the fault is one of the record
  std::map<std::string, std::int64_t> dropped = {};
  std::set<std::string> unread = {};

  /// Of one of its documents; a labelled one trains its label.
  bool trains_nothing() const {
    return label.empty() &&
           std::ranges::any_of(entries, [](const Entry& entry) { return entry.trained == 0; });
  }
};

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t") == std::string_view::npos;
}

std::uint32_t trained_of(const Example& example) {
  // The first token is never predicted.
  return example.trained.empty() ? 0
                                 : static_cast<std::uint32_t>(std::count(
                                       example.trained.begin() + 1, example.trained.end(), 1));
}

void cut(Example& example, std::int64_t longest) {
  if (std::ssize(example.ids) > longest) {
    example.ids.resize(static_cast<std::size_t>(longest));
    example.trained.resize(static_cast<std::size_t>(longest));
  }
}

}  // namespace

struct Documents::State {
  std::shared_ptr<const ExampleMaker> maker;
  DocumentOptions options;
  std::vector<DataFile> files;
  std::vector<std::int64_t> first;  // document of each file
  std::vector<Entry> entries;
  LabelNames labels;  // of labelled records
  DocumentCounts counts;
  std::optional<RecordKind> kind;  // of the file's first record

  std::string how() const;
  void write(IndexWriter& out) const;
  void read(IndexReader& in);
  std::string where(std::int64_t document) const;
  void check_tokens(std::int64_t document, const Example& example) const;
  /// The record of a document in its standard form.
  std::string record(std::int64_t document) const;
  std::vector<Example> examples_of(std::string_view record) const;
  void read_record(const Line& line, std::string_view record, Outcome& out) const;
  Outcome outcome_of(const Line& line) const;
  void add(const Outcome& outcome, const std::string& file, Faults& faults);
  void find_kind(std::span<const Line> lines);
  void scan(const DataFile& file, Faults& faults);
  std::size_t file_of(std::int64_t document) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(first, document) - first.begin()) - 1;
  }
};

/// What decides besides the files what is found in them.
std::string Documents::State::how() const {
  const std::string identity = maker->identity();
  return identity.empty()
             ? ""
             : fmt::format("documents {} {} {} {} {}{}", options.longest,
                           static_cast<int>(options.too_long), static_cast<int>(options.form),
                           options.skip_bad, columns_text(options.forms), identity);
}

void Documents::State::write(IndexWriter& out) const {
  out.list(first);
  out.list(entries);
  out.texts(labels.names());
  out.list(labels.places());
  for (const std::int64_t count :
       {counts.tokens, counts.trained, counts.longest, counts.cut, counts.left_out,
        counts.blank_lines, counts.joined, counts.bad}) {
    out.number(count);
  }
  out.counts(counts.dropped);
  out.counts(counts.unread);
  out.text(counts.first_bad);
}

void Documents::State::read(IndexReader& in) {
  in.list(first);
  in.list(entries);
  std::vector<std::string> names;
  std::vector<std::uint32_t> places;
  in.texts(names);
  in.list(places);
  labels = LabelNames(std::move(names), std::move(places));
  for (std::int64_t* const count :
       {&counts.tokens, &counts.trained, &counts.longest, &counts.cut, &counts.left_out,
        &counts.blank_lines, &counts.joined, &counts.bad}) {
    in.number(*count);
  }
  in.counts(counts.dropped);
  in.counts(counts.unread);
  in.text(counts.first_bad);
}

std::vector<Example> Documents::State::examples_of(std::string_view record) const {
  switch (options.form) {
    case RecordForm::document:
      return {maker->make(record)};
    case RecordForm::labelled:
      return {maker->make_labelled(record, options.longest).example};
    case RecordForm::tagged:
      return {maker->make_tagged(record, options.longest).example};
    case RecordForm::preference:
      break;
  }
  Preference both = maker->make_preference(record);
  return {std::move(both.chosen), std::move(both.rejected)};
}

/// The documents of a record.
void Documents::State::read_record(const Line& line, std::string_view record, Outcome& out) const {
  std::vector<Example> examples;
  std::uint32_t labelled = 0;  // tokens
  if (options.form == RecordForm::labelled) {
    LabelledText text = maker->make_labelled(record, options.longest);
    out.whole = text.whole;
    out.label = std::move(text.label);
    examples.push_back(std::move(text.example));
  } else if (options.form == RecordForm::tagged) {
    TaggedText text = maker->make_tagged(record, options.longest);
    out.whole = text.whole;
    for (std::string& label : text.labels) {
      labelled += label.empty() ? 0 : 1;
      if (!label.empty()) {
        out.labels.insert(std::move(label));
      }
    }
    examples.push_back(std::move(text.example));
  } else {
    examples = examples_of(record);
  }
  for (Example& example : examples) {
    for (const auto& [what, count] : example.dropped) {
      out.dropped[what] += count;
    }
    out.unread.merge(example.unread);
    out.whole = std::max(out.whole, std::ssize(example.ids));
    out.joined += example.joined;
    cut(example, options.longest);
    out.entries.push_back(
        {.offset = line.offset,
         .bytes = static_cast<std::uint32_t>(line.text.size()),
         .line = static_cast<std::uint32_t>(line.number),
         .tokens = static_cast<std::uint32_t>(example.ids.size()),
         .trained = options.form == RecordForm::tagged ? labelled : trained_of(example)});
  }
}

Outcome Documents::State::outcome_of(const Line& line) const {
  Outcome out{.line = line.number};
  if (is_blank(line.text)) {
    out.blank = true;
    return out;
  }
  try {
    const std::string record = options.forms.standard(line.text);
    if (kind && options.form == RecordForm::document) {
      if (const RecordKind own = ExampleMaker::kind_of(record); own != *kind) {
        fail_input({.wrong = "the record is of another kind than those before",
                    .expected = fmt::format("'{}'", name_of(*kind)),
                    .got = fmt::format("'{}'", name_of(own))});
      }
    }
    read_record(line, record, out);
    if (out.whole > options.longest && options.too_long == TooLong::error) {
      out.fault = fmt::format(
          "the document is longer than a row (expected at most {} tokens, got "
          "{}); raise data.seq_len, or set data.too_long to \"cut\" or \"skip\"",
          options.longest, out.whole);
    } else if (out.trains_nothing() && out.whole <= options.longest) {
      out.fault = "the document has no token that is trained";
      out.bad = true;
    }
  } catch (const Error& error) {
    out.fault = error.what();
    out.bad = true;
  }
  return out;
}

void Documents::State::add(const Outcome& outcome, const std::string& file, Faults& faults) {
  if (outcome.blank) {
    ++counts.blank_lines;
    return;
  }
  if (outcome.bad) {
    faults.add_bad(file, outcome.line, outcome.fault);
    return;
  }
  if (!outcome.fault.empty()) {
    faults.add(file, outcome.line, outcome.fault);
    return;
  }
  counts.longest = std::max(counts.longest, outcome.whole);
  const bool is_long = outcome.whole > options.longest;
  if (is_long && (options.too_long == TooLong::skip || outcome.trains_nothing())) {
    ++counts.left_out;
    return;
  }
  counts.cut += is_long ? 1 : 0;
  counts.joined += outcome.joined;
  for (const auto& [what, count] : outcome.dropped) {
    counts.dropped[what] += count;
  }
  constexpr std::size_t most_names = 32;
  for (const std::string& name : outcome.unread) {
    ++counts.unread[counts.unread.size() < most_names || counts.unread.contains(name) ? name
                                                                                      : "others"];
  }
  for (const Entry& entry : outcome.entries) {
    counts.tokens += entry.tokens;
    counts.trained += entry.trained;
    entries.push_back(entry);
  }
  if (options.form == RecordForm::labelled) {
    counts.trained += 1;
    labels.add(outcome.label, file);
  }
  for (const std::string& label : outcome.labels) {
    labels.place(label, file);
  }
}

/// Of the first record that has one.
void Documents::State::find_kind(std::span<const Line> lines) {
  const auto kind_of = [&](const Line& line) -> std::optional<RecordKind> {
    try {
      return is_blank(line.text)
                 ? std::nullopt
                 : std::optional(ExampleMaker::kind_of(options.forms.standard(line.text)));
    } catch (const Error&) {
      return std::nullopt;  // a fault, which is found again where records are read
    }
  };
  for (std::size_t i = 0; i < lines.size() && !kind; ++i) {
    kind = kind_of(lines[i]);
  }
}

void Documents::State::scan(const DataFile& file, Faults& faults) {
  LineReader reader(file, longest_line);
  std::vector<Line> lines;
  std::vector<std::pair<std::int64_t, std::size_t>> too_long;
  while (reader.next(lines, too_long)) {
    find_kind(lines);
    std::vector<Outcome> outcomes(lines.size());
    in_parallel(lines.size(), [&](std::size_t i) { outcomes[i] = outcome_of(lines[i]); });
    for (std::size_t i = 0; i < lines.size(); ++i) {
      add(outcomes[i], file.path(), faults);
    }
  }
  faults.add_too_long(file.path(), too_long);
}

std::optional<RecordKind> first_kind(const std::string& path, const DocumentOptions& options) {
  const DataFile file = DataFile::content_of(path);
  constexpr std::size_t block = std::size_t{64} << 10;  // the first line is enough
  LineReader reader(file, longest_line, block);
  std::vector<Line> lines;
  std::vector<std::pair<std::int64_t, std::size_t>> too_long;
  while (reader.next(lines, too_long)) {
    for (const Line& line : lines) {
      if (is_blank(line.text)) {
        continue;
      }
      try {
        return ExampleMaker::kind_of(options.forms.standard(line.text));
      } catch (const Error& error) {
        if (!options.skip_bad) {
          fail_input({.thing = fmt::format("{}:{}", path, line.number), .wrong = error.what()});
        }
      }
    }
  }
  return std::nullopt;
}

Documents::Documents(std::span<const std::string> files, std::shared_ptr<const ExampleMaker> maker,
                     const DocumentOptions& options) {
  auto state = std::make_unique<State>();
  state->maker = std::move(maker);
  state->options = options;
  for (const std::string& path : files) {
    state->files.push_back(DataFile::content_of(path));
  }
  const DataIndex index(state->files, state->how());
  if (const std::optional<std::string> kept = index.find()) {
    IndexReader in(*kept);
    state->read(in);
    state_ = std::move(state);
    return;
  }
  Faults faults(options.skip_bad);
  for (const DataFile& file : state->files) {
    state->first.push_back(std::ssize(state->entries));
    state->kind.reset();
    state->scan(file, faults);
  }
  faults.throw_if_any();
  state->counts.bad = faults.bad();
  state->counts.first_bad = faults.first_bad();
  if (state->entries.empty()) {
    fail_input({.thing = files.empty() ? "documents" : files[0],
                .wrong = fmt::format("there is no document ({} blank lines, {} left out, {} bad)",
                                     state->counts.blank_lines, state->counts.left_out,
                                     state->counts.bad)});
  }
  IndexWriter out;
  state->write(out);
  index.keep(out.bytes());
  state_ = std::move(state);
}

Documents::~Documents() = default;

std::int64_t Documents::size() const { return std::ssize(state_->entries); }
std::size_t Documents::files() const { return state_->files.size(); }
std::int64_t Documents::tokens(std::int64_t document) const {
  return state_->entries.at(static_cast<std::size_t>(document)).tokens;
}
std::int64_t Documents::trained(std::int64_t document) const {
  return state_->entries.at(static_cast<std::size_t>(document)).trained;
}
std::string Documents::where(std::int64_t document) const { return state_->where(document); }
std::int64_t Documents::of_record() const { return state_->options.of_record(); }
const std::vector<std::string>& Documents::labels() const { return state_->labels.names(); }
std::int64_t Documents::label(std::int64_t document) const { return state_->labels.of(document); }
bool Documents::has_label(std::int64_t document, std::int64_t label) const {
  if (state_->options.form != RecordForm::tagged) {
    return state_->labels.of(document) == label;
  }
  const auto [example, labels] = read_tagged(document);
  return std::ranges::find(labels, label) != labels.end();
}
const DocumentCounts& Documents::counts() const { return state_->counts; }
const ExampleMaker& Documents::maker() const { return *state_->maker; }

std::string Documents::State::where(std::int64_t document) const {
  return fmt::format("{}:{}", files[file_of(document)].path(),
                     entries.at(static_cast<std::size_t>(document)).line);
}

/// Error (input): an index that was kept is of other code or data.
void Documents::State::check_tokens(std::int64_t document, const Example& example) const {
  const std::int64_t expected = entries.at(static_cast<std::size_t>(document)).tokens;
  if (std::ssize(example.ids) != expected) {
    fail_input({.thing = where(document),
                .wrong = "the record has another number of tokens than when the data were read",
                .expected = fmt::format("{}", expected),
                .got = fmt::format("{}", example.ids.size())});
  }
}

std::string Documents::State::record(std::int64_t document) const {
  const Entry& entry = entries.at(static_cast<std::size_t>(document));
  const DataFile& file = files[file_of(document)];
  std::string line(entry.bytes, '\0');
  DataFile::Handle(file).read(file, entry.offset, std::as_writable_bytes(std::span(line)));
  return options.forms.standard(line);
}

std::pair<Example, std::vector<std::int64_t>> Documents::read_tagged(std::int64_t document) const {
  TaggedText text = state_->maker->make_tagged(state_->record(document), state_->options.longest);
  state_->check_tokens(document, text.example);
  std::vector<std::int64_t> labels;
  for (const std::string& label : text.labels) {
    labels.push_back(label.empty() ? -1 : state_->labels.place(label));
  }
  return {std::move(text.example), std::move(labels)};
}

Example Documents::read(std::int64_t document) const {
  Example example = std::move(state_->examples_of(
      state_->record(document))[static_cast<std::size_t>(document % state_->options.of_record())]);
  cut(example, state_->options.longest);
  state_->check_tokens(document, example);
  return example;
}

std::string Documents::content_hash() const {
  return hash_of(state_->files, columns_text(state_->options.forms));
}

}  // namespace tessera::data
