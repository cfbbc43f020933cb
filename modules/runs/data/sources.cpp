module;
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tessera/utf8.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.tokenize;
import tessera.data;
import tessera.hub;

namespace tessera::runs {
namespace {

std::vector<std::string> names_of(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::string> names;
  names.reserve(paths.size());
  for (const std::filesystem::path& path : paths) {
    names.push_back(path.string());
  }
  return names;
}

/// Whether the records are texts, which make a stream. Error (input): some files have texts, and
/// others documents.
bool have_texts(const std::vector<std::string>& files, const data::DocumentOptions& options) {
  std::string first;
  bool texts = false;
  for (const std::string& file : files) {
    const auto kind = data::first_kind(file, options);
    const bool own = kind == data::RecordKind::text;
    if (kind && !first.empty() && own != texts) {
      fail_input({.thing = file,
                  .wrong = fmt::format("its records are of another kind than those of {}", first),
                  .advice = "name texts and conversations as two tables of data.sources"});
    }
    if (kind && first.empty()) {
      first = file;
      texts = own;
    }
  }
  return texts;
}

data::RecordForm form_of(ObjectiveKind objective) {
  switch (objective) {
    case ObjectiveKind::next_token:
      return data::RecordForm::document;
    case ObjectiveKind::dpo:
      return data::RecordForm::preference;
    case ObjectiveKind::classification:
      return data::RecordForm::labelled;
    case ObjectiveKind::token_classification:
      return data::RecordForm::tagged;
  }
  fail("data: no such objective");
}

data::DocumentOptions options_of(const RunSpec& config, const SourceConfig& source) {
  return {.longest = config.data.seq_len + (config.classifies() ? 0 : 1),
          .too_long = config.data.too_long,
          .form = form_of(config.train.objective),
          .skip_bad = config.data.bad_records == BadRecords::skip,
          .forms = source.forms};
}

/// `what`: a record, in the plural.
std::string left_out_text(const data::DocumentCounts& counts, const std::string& what) {
  std::string text;
  const auto add = [&](std::int64_t count, const std::string& part) {
    if (count > 0) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, part);
    }
  };
  add(counts.left_out, what + " that are too long");
  add(counts.cut, fmt::format("ends of {} that are too long", what));
  add(counts.blank_lines, "blank lines");
  add(counts.bad, fmt::format("bad records (the first: {})", counts.first_bad));
  for (const auto& [kind, count] : counts.dropped) {
    add(count, fmt::format("contents that the template does not write ({})", kind));
  }
  return text;
}

std::string joined(const std::string& a, const std::string& b) {
  return a + (a.empty() || b.empty() ? "" : ", ") + b;
}

class Opener {
 public:
  Opener(const RunSpec& config, const DataReader& reader)
      : config_(config), reader_(reader), tokenizer_(reader.tokenizer) {}

  std::vector<OpenedSource> all(const std::vector<SourceConfig>& sources) {
    std::vector<OpenedSource> opened;
    for (const SourceConfig& source : sources) {
      opened.push_back(at_key(config_, source.key, [&] { return open(source); }));
      opened.back().weight = source.weight;
      opened.back().key = source.key;
    }
    return opened;
  }

 private:
  OpenedSource open(const SourceConfig& source) {
    if (reader_.images) {
      return images(source);
    }
    if (source.kind != SourceConfig::Kind::tokens && !tokenizer_) {
      fail_input({.wrong = "the run has token ids only, so there is no tokenizer for texts",
                  .expected = "*.npy"});
    }
    if (source.kind != SourceConfig::Kind::jsonl &&
        config_.train.objective != ObjectiveKind::next_token) {
      fail_input({.wrong = fmt::format("train.objective={} {}, and these are plain texts",
                                       word_of(config_, "train.objective"),
                                       config_.classifies() ? "needs labels" : "compares answers"),
                  .expected = config_.tags() ? "records with 'words' and 'labels'"
                              : config_.classifies()
                                  ? "records with 'text' and 'label'"
                                  : "records with 'prompt', 'chosen' and 'rejected'",
                  .got = source.paths.front(),
                  .advice = "name *.jsonl files, or set train.objective=next_token"});
    }
    switch (source.kind) {
      case SourceConfig::Kind::tokens:
        return {.tokens = std::make_shared<data::Tokens>(
                    data::Tokens::from_npy(source.paths, reader_.vocab)),
                .paths = source.paths};
      case SourceConfig::Kind::text:
        return text(source);
      case SourceConfig::Kind::jsonl:
        break;
    }
    TextFiles found = find_text_files(source.paths);
    const std::vector<std::string> files = names_of(found.files);
    const data::DocumentOptions options = options_of(config_, source);
    if (options.form == data::RecordForm::document && have_texts(files, options)) {
      auto tokens = std::make_shared<data::EncodedText>(
          data::EncodedText::from_records(files, maker(), options.skip_bad, options.forms));
      std::string left_out = joined(found.left_out, left_out_text(tokens->counts(), "texts"));
      return {.tokens = std::move(tokens), .left_out = std::move(left_out), .paths = files};
    }
    auto documents = std::make_shared<data::Documents>(files, maker(), options);
    std::string left_out = joined(
        found.left_out,
        left_out_text(documents->counts(), options.of_record() == 1 ? "documents" : "pairs"));
    return {.documents = std::move(documents), .left_out = std::move(left_out), .paths = files};
  }

  OpenedSource images(const SourceConfig& source) {
    if (source.kind != SourceConfig::Kind::jsonl) {
      fail_input({.wrong = "the model takes images",
                  .expected = "*.jsonl of records with 'image' and 'label'",
                  .got = source.paths.front()});
    }
    TextFiles found = find_text_files(source.paths);
    const std::vector<std::string> files = names_of(found.files);
    auto images = std::make_shared<data::LabelledImages>(
        files, *reader_.images, config_.data.bad_records == BadRecords::skip, source.forms);
    std::string left_out =
        joined(found.left_out, left_out_text({.blank_lines = images->blank_lines(),
                                              .bad = images->bad(),
                                              .first_bad = images->first_bad()},
                                             "images"));
    return {.images = std::move(images), .left_out = std::move(left_out), .paths = files};
  }

  OpenedSource text(const SourceConfig& source) {
    TextFiles found = find_text_files(source.paths);
    const std::vector<std::string> files = names_of(found.files);
    if (tokenizer_->path.empty() && tokenizer_->kind == "bytes") {  // needs no pass over the text
      return {.tokens = std::make_shared<data::Tokens>(data::Tokens::from_bytes(files)),
              .left_out = std::move(found.left_out),
              .paths = files};
    }
    return {.tokens =
                std::make_shared<data::EncodedText>(data::EncodedText::from_files(files, maker())),
            .left_out = std::move(found.left_out),
            .paths = files};
  }

  const std::shared_ptr<const data::ExampleMaker>& maker() {
    if (!maker_) {
      maker_ = example_maker(config_, tokenizer_);
    }
    return maker_;
  }

  const RunSpec& config_;
  const DataReader& reader_;
  const std::shared_ptr<const hub::ModelTokenizer>& tokenizer_;
  std::shared_ptr<const data::ExampleMaker> maker_;
};

}  // namespace

std::int64_t padding_of(const hub::ModelTokenizer& tokenizer) {
  const tokenize::SpecialTokens& special = tokenizer.opened.special;
  return special.pad ? *special.pad : special.eos ? *special.eos : 0;
}

std::size_t OpenedSource::files() const {
  return tokens ? tokens->files() : documents ? documents->files() : images->files();
}
std::string OpenedSource::content_hash() const {
  return tokens      ? tokens->content_hash()
         : documents ? documents->content_hash()
                     : images->content_hash();
}
std::int64_t OpenedSource::size() const {
  return tokens ? tokens->size() : documents ? documents->counts().tokens : images->size();
}
const data::LabelledRecords& OpenedSource::labelled() const {
  require(documents || images, "data: tokens have no labels");
  return documents ? static_cast<const data::LabelledRecords&>(*documents) : *images;
}

std::shared_ptr<const data::ExampleMaker> example_maker(
    const RunSpec& config, const std::shared_ptr<const hub::ModelTokenizer>& tokenizer) {
  data::ExampleOptions options = tokenizer->records;
  options.identity = hub::content_identity(*tokenizer);
  return std::make_shared<const data::ExampleMaker>(tokenizer->opened, chat_template_of(*tokenizer),
                                                    config.data.train_on, std::move(options));
}

std::vector<OpenedSource> open_sources(const RunSpec& config, const DataReader& reader) {
  return Opener(config, reader).all(data_sources(config));
}

std::vector<OpenedSource> open_validation(const RunSpec& config, const DataReader& reader) {
  return Opener(config, reader).all(validation_sources(config));
}

}  // namespace tessera::runs
