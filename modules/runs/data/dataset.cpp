module;
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.tokenize;
import tessera.data;
import tessera.hub;

namespace tessera::runs {
namespace {

using Rows = std::shared_ptr<const data::RowSource>;

constexpr std::uint64_t packing = 0x7061636b696e67ULL;  // the seed's second part

/// The rows of a source: those that are trained, and what is set aside at its end.
struct SourceRows {
  Rows training;
  Rows validation;
  std::int64_t tokens = 0;  // to train on
  std::int64_t validation_tokens = 0;
  std::int64_t documents = 0;  // to train on
};

/// How the sources of a run become rows.
struct Division {
  double share = 0;  // of each source, at its end, that is set aside
  std::int64_t length = 0;
  bool packs = false;
  std::optional<std::uint64_t> order = {};  // in which documents are packed
  std::int64_t padding = 0;
  std::vector<std::string> labels = {};  // classes of labelled records
  bool tags = false;                     // each word has one
};

Division division_of(const RunSpec& config, const DataReader& reader) {
  Division by{.length = config.data.seq_len, .packs = config.data.packs()};
  by.tags = config.tags();
  if (config.data.order == RowOrder::shuffled) {
    by.order = hash_combine(static_cast<std::uint64_t>(config.train.seed), packing);
  }
  by.padding = reader.padding     ? *reader.padding
               : reader.tokenizer ? padding_of(*reader.tokenizer)
                                  : 0;
  return by;
}

/// The classes that the labels of records are.
std::vector<std::int64_t> classes_of(const data::LabelledRecords& records, const Division& by) {
  std::vector<std::int64_t> classes;
  for (const std::string& label : records.labels()) {
    classes.push_back(std::ranges::find(by.labels, label) - by.labels.begin());
  }
  return classes;
}

Rows document_rows(const std::shared_ptr<const data::Documents>& documents, std::int64_t begin,
                   std::int64_t end, const Division& by) {
  if (by.tags) {
    return std::make_shared<data::TaggedRows>(documents, begin, end, by.padding,
                                              classes_of(*documents, by));
  }
  if (!by.labels.empty()) {
    return std::make_shared<data::LabelledRows>(documents, begin, end, by.padding,
                                                classes_of(*documents, by));
  }
  if (documents->of_record() == 2) {
    return std::make_shared<data::PreferenceRows>(documents, begin, end, by.length, by.padding);
  }
  if (by.packs) {
    return std::make_shared<data::PackedRows>(documents, begin, end, by.length, by.padding,
                                              by.order);
  }
  return std::make_shared<data::DocumentRows>(documents, begin, end, by.length, by.padding);
}

SourceRows divided(const OpenedSource& source, const Division& by) {
  const std::int64_t of_record = source.documents ? source.documents->of_record() : 1;
  const std::int64_t all = source.documents ? source.documents->size() / of_record : source.size();
  const std::int64_t first =
      all - static_cast<std::int64_t>(std::floor(static_cast<double>(all) * by.share));
  if (source.tokens) {
    return {std::make_shared<data::Windows>(source.tokens, 0, first, by.length),
            std::make_shared<data::Windows>(source.tokens, first, all, by.length), first,
            all - first};
  }
  if (source.images) {
    const auto rows = [&](std::int64_t begin, std::int64_t end) {
      return std::make_shared<data::ImageRows>(source.images, begin, end,
                                               classes_of(*source.images, by));
    };
    return {rows(0, first), rows(first, all), first, all - first, first};
  }
  const auto tokens_of = [&](std::int64_t begin, std::int64_t end) {
    std::int64_t sum = 0;
    for (std::int64_t i = begin * of_record; i < end * of_record; ++i) {
      sum += source.documents->tokens(i);
    }
    return sum;
  };
  return {document_rows(source.documents, 0, first, by),
          document_rows(source.documents, first, all, by), tokens_of(0, first),
          tokens_of(first, all), first * of_record};
}

/// Numbers by their values, before other texts.
struct LabelOrder {
  bool operator()(const std::string& a, const std::string& b) const {
    const auto number = [](const std::string& text) {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      const bool is = error == std::errc() && end == text.data() + text.size();
      return std::pair(!is, is ? value : 0);
    };
    return std::pair(number(a), a) < std::pair(number(b), b);
  }
};

/// Error (input) that names a record whose label is none of the classes.
void check_labels(const OpenedSource& source, const std::vector<std::string>& labels,
                  bool are_given) {
  const data::LabelledRecords& records = source.labelled();
  std::int64_t missing = -1;
  for (std::int64_t i = 0; i < std::ssize(records.labels()) && missing < 0; ++i) {
    if (std::ranges::find(labels, records.labels()[static_cast<std::size_t>(i)]) == labels.end()) {
      missing = i;
    }
  }
  for (std::int64_t i = 0; i < records.size() && missing >= 0; ++i) {
    if (records.has_label(i, missing)) {
      fail_input(
          {.thing = records.where(i),
           .wrong = fmt::format("the label '{}' is {}",
                                shown(records.labels()[static_cast<std::size_t>(missing)], 60),
                                are_given ? "none of data.labels" : "none of the data to train on"),
           .expected = shown(join_words(labels), 200)});
    }
  }
}

/// What to do about too few rows.
std::string shorter_advice(const DataConfig& data, bool batch_is_one) {
  const bool has_share = data.validation != 0 && data.validation_files.empty();
  return fmt::format("add {}, or lower {}{}data.seq_len{}", data.tokens.empty() ? "text" : "tokens",
                     batch_is_one ? "" : "train.batch",
                     batch_is_one ? ""
                     : has_share  ? ", "
                                  : " or ",
                     has_share ? " or data.validation" : "");
}

}  // namespace

Dataset::Dataset(const RunSpec& config, std::int64_t vocab)
    : Dataset(config, DataReader{.tokenizer = open_run_tokenizer(config), .vocab = vocab}) {}

Dataset::Dataset(const RunSpec& config, DataReader reader,
                 const std::vector<std::string>& known_labels, const ContinuedRows& continued)
    : reader_{.tokenizer = hub::limited(std::move(reader.tokenizer), reader.vocab),
              .vocab = reader.vocab,
              .padding = reader.padding,
              .images = reader.images,
              .image_tokens = reader.image_tokens},
      sources_(open_sources(config, reader_)),
      validation_sources_(open_validation(config, reader_)),
      seq_len_(reader_.images ? 1 : config.data.seq_len),
      row_sequences_(config.row_sequences()),
      batch_(config.train.batch),
      packs_(config.data.packs()) {
  const auto has_documents = [](const OpenedSource& source) { return source.documents != nullptr; };
  if (packs_ && std::ranges::none_of(sources_, has_documents) &&
      std::ranges::none_of(validation_sources_, has_documents)) {
    fail_input({.where = config.place("data.packing"),
                .wrong = "there are no conversations and no completions; rows of texts are full "
                         "already",
                .advice = "set data.packing=none"});
  }
  if (config.classifies()) {
    find_labels(config, known_labels);
  }
  divide(config);
  measure();
  leave_out(config, continued);
}

void Dataset::leave_out(const RunSpec& config, const ContinuedRows& continued) {
  auto history = std::make_unique<RowHistory>(training_, batch_);
  history->restore(continued.before);
  if (!config.data.exclude.empty()) {
    at_key(config, "data.exclude", [&] {
      newly_excluded_ = history->leave_out(continued.step, read_row_places(config.data.exclude));
    });
  }
  history_ = std::move(history);
}

void Dataset::find_labels(const RunSpec& config, const std::vector<std::string>& known) {
  std::set<std::string, LabelOrder> found;
  for (const OpenedSource& source : sources_) {
    found.insert(source.labelled().labels().begin(), source.labelled().labels().end());
  }
  const bool are_known = std::ranges::all_of(found, [&](const std::string& label) {
    return std::ranges::find(known, label) != known.end();
  });
  labels_ = !config.data.labels.empty() ? config.data.labels
            : are_known                 ? known
                                        : std::vector<std::string>(found.begin(), found.end());
  for (const auto* const sources : {&sources_, &validation_sources_}) {
    for (const OpenedSource& source : *sources) {
      check_labels(source, labels_, !config.data.labels.empty());
    }
  }
}

void Dataset::divide(const RunSpec& config) {
  const bool own_validation = !validation_sources_.empty();
  const double share = own_validation ? 0 : config.data.validation;
  Division by = division_of(config, reader_);
  by.labels = labels_;
  padding_ = by.padding;
  std::vector<data::WeightedRows> training;
  RowSources validation;
  std::int64_t validation_tokens = 0;
  std::int64_t rows = 0;
  by.share = share;
  for (const OpenedSource& source : sources_) {
    const SourceRows parts = divided(source, by);
    training_tokens_ += parts.tokens;
    documents_ += parts.documents;
    validation_tokens += parts.validation_tokens;
    rows += parts.training->rows();
    training.push_back({parts.training, source.weight});
    validation.push_back(parts.validation);
  }
  if (rows < batch_) {
    const bool documents = std::ranges::any_of(
        sources_, [](const OpenedSource& source) { return source.documents != nullptr; });
    if (has_images()) {
      fail_input({.thing = "data",
                  .wrong = "too few images to train on",
                  .expected = fmt::format("at least {}, one batch", batch_),
                  .got = fmt::format("{}", rows),
                  .advice = "add images, or lower train.batch or data.validation"});
    }
    fail_input(
        {.thing = "data",
         .wrong = fmt::format("too short: {} training tokens make {} {} of {}", training_tokens_,
                              rows, documents ? "rows" : "windows", seq_len_),
         .expected = documents ? fmt::format("at least {}, one batch", batch_)
                               : fmt::format("at least {}, one batch: {} tokens", batch_,
                                             batch_ * seq_len_ + 1),
         .advice = shorter_advice(config.data, batch_ == 1)});
  }
  training_ = std::make_shared<data::Mixture>(std::move(training),
                                              static_cast<std::uint64_t>(config.train.seed),
                                              config.data.order == RowOrder::shuffled);
  if (own_validation) {
    validation.clear();
    validation_tokens = 0;
    for (const OpenedSource& source : validation_sources_) {
      const SourceRows parts = divided(source, by);
      validation_tokens += parts.tokens;
      validation.push_back(parts.training);
    }
  }
  if (share > 0 || own_validation) {
    set_validation(config, std::move(validation), validation_tokens);
  }
}

void Dataset::set_validation(const RunSpec& config, RowSources rows, std::int64_t tokens) {
  validation_ = std::move(rows);
  for (const Rows& source : validation_) {
    validation_windows_ += source->rows();
  }
  const std::int64_t wanted = config.data.validation_windows > 0
                                  ? std::min(config.data.validation_windows, validation_windows_)
                                  : validation_windows_;
  validation_batches_ = wanted / batch_;
  // A part of a batch is completed with rows whose loss does not count; pairs of answers all count.
  if (validation_batches_ == 0 && wanted > 0 && row_sequences_ == 1) {
    validation_batches_ = 1;
  }
  validation_used_ = std::min(wanted, validation_batches_ * batch_);
  if (validation_batches_ == 0 && has_images()) {
    fail_input({.thing = "data.validation",
                .wrong = "there is no image in it",
                .advice = "raise it, or set data.validation = 0"});
  }
  if (validation_batches_ == 0) {
    const bool own = !validation_sources_.empty();
    fail_input(
        fmt::format("{}: too short: {} tokens make {} windows of {}, of which {} are used "
                    "(expected at least {}, one batch); raise {}{}",
                    own ? "data.validation_files" : "data.validation", tokens, validation_windows_,
                    seq_len_, wanted, batch_,
                    validation_windows_ >= batch_ ? "data.validation_windows"
                    : own                         ? "the number of their texts"
                                                  : "data.validation",
                    own ? "" : ", or set data.validation = 0"));
  }
  for (std::int64_t i = 0; i < validation_used_; ++i) {
    std::int64_t row = validation_row(i);
    std::size_t source = 0;
    while (row >= validation_[source]->rows()) {
      row -= validation_[source++]->rows();
    }
    validation_trained_ += validation_[source]->trained(row);
  }
}

/// Spread evenly: the k-th of those that are used among all.
std::int64_t Dataset::validation_row(std::int64_t number) const {
  return number * validation_windows_ / validation_used_;
}

void Dataset::measure() {
  double used = 0;
  double trained = 0;
  for (std::size_t i = 0; i < training_->sources(); ++i) {
    const data::RowSource& source = training_->source(i);
    double of_used = 0;
    double of_trained = 0;
    for (std::int64_t row = 0; sources_[i].documents && row < source.rows(); ++row) {
      of_used += static_cast<double>(source.used(row));
      of_trained += static_cast<double>(source.trained(row));
    }
    const double positions =
        static_cast<double>(source.rows()) * static_cast<double>(row_sequences_ * seq_len_);
    const double share = static_cast<double>(training_->quota(i)) / 1000.0;
    used += share * (sources_[i].documents ? of_used / positions : 1);
    trained += share * (sources_[i].documents ? of_trained / positions : 1);
  }
  used_share_ = used;
  trained_share_ = trained;
}

std::int64_t Dataset::trained(const RowHistory& history, std::int64_t step) const {
  std::int64_t sum = 0;
  for (std::int64_t row = 0; row < batch_; ++row) {
    const data::Mixture::SourceRow place = history.at(step, row);
    sum += history.trained(step, {.source = place.source, .row = place.row});
  }
  return sum;
}

Batch Dataset::empty_batch(std::int64_t rows) const {
  Batch batch{.rows = rows * row_sequences_, .seq_len = seq_len_};
  batch.inputs.resize(static_cast<std::size_t>(batch.rows * seq_len_));
  batch.targets.resize(batch.inputs.size());
  if (packs_) {
    batch.documents.resize(batch.inputs.size());
    batch.positions.resize(batch.inputs.size());
  }
  if (!labels_.empty()) {
    batch.lengths.resize(static_cast<std::size_t>(rows));
  }
  if (has_images()) {
    batch.pixels.resize(static_cast<std::size_t>(rows) * reader_.images->bytes());
  }
  return batch;
}

/// Fills row `at` of a batch.
void Dataset::fill(Batch& batch, std::int64_t at, const data::RowSource& source,
                   std::int64_t row) const {
  const auto length = static_cast<std::size_t>(row_sequences_ * batch.seq_len);
  const std::size_t begin = static_cast<std::size_t>(at) * length;
  source.read(row, std::span(batch.inputs).subspan(begin, length),
              std::span(batch.targets).subspan(begin, length));
  if (!labels_.empty()) {
    batch.lengths[static_cast<std::size_t>(at)] = source.used(row);
  }
  if (has_images()) {
    const std::size_t bytes = reader_.images->bytes();
    source.read_pixels(
        row, std::span(batch.pixels).subspan(static_cast<std::size_t>(at) * bytes, bytes));
  }
  if (!packs_) {
    return;
  }
  std::vector<std::int64_t> begins = source.document_begins(row);
  begins.push_back(batch.seq_len);
  for (std::size_t document = 0; document + 1 < begins.size(); ++document) {
    for (std::int64_t i = begins[document]; i < begins[document + 1]; ++i) {
      batch.documents[begin + static_cast<std::size_t>(i)] = begins[document];
      batch.positions[begin + static_cast<std::size_t>(i)] = i - begins[document];
    }
  }
}

/// Makes documents of row `at` padding.
void Dataset::pad(Batch& batch, std::int64_t at,
                  std::span<const data::DocumentPlace> places) const {
  const std::int64_t begin = at * row_sequences_ * batch.seq_len;
  for (const data::DocumentPlace& place : places) {
    for (std::int64_t i = begin + place.begin; i < begin + place.end; ++i) {
      batch.inputs[static_cast<std::size_t>(i)] = padding_;
      batch.targets[static_cast<std::size_t>(i)] = data::ignored_target;
    }
  }
}

Batch Dataset::rows(const RowHistory& history, std::int64_t step, std::int64_t first_row,
                    std::int64_t count) const {
  if (step < 0 || first_row < 0 || count < 0 || first_row + count > batch_) {
    fail({.thing = "data",
          .wrong = fmt::format("no rows [{}, {}) of step {} in a batch of {}", first_row,
                               first_row + count, step, batch_)});
  }
  Batch batch = empty_batch(count);
  for (std::int64_t i = 0; i < count; ++i) {
    const data::Mixture::SourceRow place = history.at(step, first_row + i);
    fill(batch, i, training_->source(place.source), place.row);
    pad(batch, i, history.padded(step, {.source = place.source, .row = place.row}));
  }
  return batch;
}

Batch Dataset::validation_rows(std::int64_t batch, std::int64_t first_row,
                               std::int64_t count) const {
  if (batch < 0 || batch >= validation_batches_ || first_row < 0 || count < 0 ||
      first_row + count > batch_) {
    fail({.thing = "data",
          .wrong = fmt::format("no rows [{}, {}) of validation batch {} of {}", first_row,
                               first_row + count, batch, validation_batches_)});
  }
  Batch out = empty_batch(count);
  const auto length = static_cast<std::size_t>(row_sequences_ * seq_len_);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t number = batch * batch_ + first_row + i;
    if (number >= validation_used_) {
      std::ranges::fill(
          std::span(out.targets).subspan(static_cast<std::size_t>(i) * length, length),
          data::ignored_target);
      continue;
    }
    std::int64_t row = validation_row(number);
    std::size_t source = 0;
    while (row >= validation_[source]->rows()) {
      row -= validation_[source++]->rows();
    }
    fill(out, i, *validation_[source], row);
  }
  return out;
}

void Dataset::check_all() const {
  for (const auto* const sources : {&sources_, &validation_sources_}) {
    for (const OpenedSource& source : *sources) {
      if (source.tokens) {
        source.tokens->check_all();
      }
    }
  }
}

std::int64_t Dataset::tokens() const {
  std::int64_t sum = 0;
  for (const OpenedSource& source : sources_) {
    sum += source.size();
  }
  return sum;
}

std::string Dataset::content_hash() const {
  std::string all;
  for (const auto* const sources : {&sources_, &validation_sources_}) {
    for (const OpenedSource& source : *sources) {
      all += (all.empty() ? "" : " ") + source.content_hash();
    }
  }
  return all;
}

std::size_t Dataset::files() const {
  std::size_t sum = 0;
  for (const OpenedSource& source : sources_) {
    sum += source.files();
  }
  return sum;
}

std::string Dataset::left_out() const {
  std::string all;
  for (const auto* const sources : {&sources_, &validation_sources_}) {
    for (const OpenedSource& source : *sources) {
      if (!source.left_out.empty()) {
        all += (all.empty() ? "" : ", ") + source.left_out;
      }
    }
  }
  return all;
}

std::int64_t steps_of(const RunSpec& config, const Dataset& data) {
  if (config.train.epochs == 0) {
    return config.train.steps;
  }
  const double rows = config.train.epochs * static_cast<double>(data.windows());
  const std::int64_t turns =  // without those whose rows are left out
      data.history().order().turns_before(static_cast<std::int64_t>(std::ceil(rows)));
  return (turns + config.train.batch - 1) / config.train.batch;
}

RunSpec with_data(RunSpec spec, const Dataset& data) {
  if (spec.train.epochs == 0 && !data.has_images()) {
    return spec;
  }
  if (data.has_images()) {
    spec.data.seq_len = data.image_tokens();
  }
  if (spec.train.epochs > 0) {
    spec.train.steps = steps_of(spec, data);
    spec.train.epochs = 0;
    spec.given["train.steps"] = spec.place_of_key("train.epochs");
  }
  Problems problems(spec.file.string());
  check_config(spec, {}, problems);
  problems.throw_if_any();
  return spec;
}

void check_batch_division(const RunSpec& config, std::int64_t parts) {
  const std::int64_t batch = config.train.batch;
  const std::int64_t micro = config.train.micro_batch;
  if (config.train.is_layout_free()) {
    return;  // what is divided is virtual shards
  }
  if (batch % parts != 0) {
    fail_input(
        {.where = config.place("train.batch"),
         .wrong = fmt::format(
             "{} sequences cannot be divided equally over the {} ranks of the mesh's data axes",
             batch, parts),
         .advice = fmt::format("use a multiple of {}", parts)});
  }
  if (micro > 0 && (batch / parts) % micro != 0) {
    fail_input({.where = config.place("train.micro_batch"),
                .wrong = fmt::format(
                    "{} does not divide a rank's {} sequences (train.batch {} over {} ranks)",
                    micro, batch / parts, batch, parts),
                .advice = fmt::format("use a divisor of {}", batch / parts)});
  }
}

}  // namespace tessera::runs
