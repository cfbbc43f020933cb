module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.tokenize;
import tessera.data;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;
import :page;
import :run_data;

namespace tessera::app {
namespace {

/// The data of a run, as it opens them.
struct OpenedData {
  runs::RunSpec config;
  std::shared_ptr<const runs::DataTask> task;
};

OpenedData opened(const TrainArguments& arguments) {
  OpenedData all;
  all.config = load_run_config(arguments);
  all.task = runs::open_data_task(all.config);
  return all;
}

/// A token as the vocabulary has it, or its number where there is no tokenizer.
std::string token_text(const runs::Dataset& data, std::int64_t id) {
  std::string text;
  if (data.tokenizer()) {
    const auto token =
        data.tokenizer()->opened.tokenizer->token(static_cast<tokenize::TokenId>(id));
    for (const char c : token.value_or("")) {
      const auto byte = static_cast<unsigned char>(c);
      const bool alone = token->size() == 1 && byte >= 0x80;  // a byte that is not a character
      text +=
          byte < 0x20 || byte == 0x7F || alone ? fmt::format("\\x{:02X}", byte) : std::string(1, c);
    }
  }
  return text;
}

/// A token of a row: the first one of a document is read only; the others are predicted too.
struct ShownToken {
  std::int64_t id = 0;
  bool trained = false;
  bool begins = false;     // another document than that of the token before
  std::string label = {};  // its class; empty: it has none of its own
};

/// The tokens of a row, without the padding behind it.
std::vector<ShownToken> tokens_of(const runs::Dataset& data, std::int64_t step, std::int64_t row,
                                  bool tags) {
  if (data.has_images()) {
    return {};
  }
  const runs::Batch batch = data.rows(step, row, 1);
  const data::Mixture::SourceRow place = data.place_of(step, row);
  const data::RowSource& source = data.training().source(place.source);
  std::vector<ShownToken> tokens;
  if (!data.labels().empty()) {  // the targets are the row's class, or those of words
    for (std::size_t i = 0; i < static_cast<std::size_t>(source.used(place.row)); ++i) {
      tokens.push_back({.id = batch.inputs[i]});
      if (tags && batch.targets[i] >= 0) {
        tokens.back().label = data.labels()[static_cast<std::size_t>(batch.targets[i])];
      }
    }
    return tokens;
  }
  for (const data::DocumentPlace& document : source.documents(place.row)) {
    auto at = static_cast<std::size_t>(document.begin);
    const auto end = static_cast<std::size_t>(document.end);
    tokens.push_back({batch.inputs[at], false, at > 0});
    for (; at < end; ++at) {
      const bool trained = batch.targets[at] != data::ignored_target;
      if (trained || at + 1 < end) {
        tokens.push_back({trained ? batch.targets[at] : batch.inputs[at + 1], trained});
      }
    }
  }
  return tokens;
}

/// What is trained of a row.
std::string trained_text(const runs::Dataset& data, std::int64_t step, std::int64_t row,
                         const std::vector<ShownToken>& tokens, bool tags) {
  if (data.labels().empty()) {
    return fmt::format("{} trained", std::ranges::count_if(tokens, &ShownToken::trained));
  }
  if (tags) {
    const auto count =
        std::ranges::count_if(tokens, [](const ShownToken& token) { return !token.label.empty(); });
    return count_text(count, "label");
  }
  const auto own = static_cast<std::size_t>(data.rows(step, row, 1).targets[0]);
  return fmt::format("label {}", shown(data.labels()[own], 60));
}

std::string title_of(const runs::Dataset& data, std::int64_t step, std::int64_t row,
                     const std::vector<ShownToken>& tokens, bool tags) {
  const data::Mixture::SourceRow place = data.place_of(step, row);
  const runs::OpenedSource& source = data.sources()[place.source];
  const std::string where = data.training().source(place.source).where(place.row);
  const std::string from = source.tokens ? fmt::format("{}, {}", source.key, where) : where;
  const std::string what = trained_text(data, step, row, tokens, tags);
  if (source.images) {
    const data::ImageForm& form = source.images->form();
    return fmt::format("step {}, row {}: {}: {}, {} x {}, {}", step + 1, row, from,
                       source.images->path(data.rows(step, row, 1).inputs[0]), form.width,
                       form.height, what);
  }
  return fmt::format("step {}, row {}: {}: {} tokens, {}", step + 1, row, from, tokens.size(),
                     what);
}

std::string as_text(const runs::Dataset& data, const std::vector<ShownToken>& tokens, bool colour) {
  std::string text;
  for (const ShownToken& token : tokens) {
    const std::string shown =
        fmt::format("{}|{}{}", token_text(data, token.id), token.id,
                    token.label.empty() ? "" : "=" + tessera::shown(token.label, 60));
    text += token.begins ? "\n" : "";
    text += token.trained ? fmt::format("{}{{{}}}{} ", colour ? "\x1b[32m" : "", shown,
                                        colour ? "\x1b[0m" : "")
                          : shown + " ";
  }
  return text + "\n";
}

constexpr std::string_view page_head = R"(<!doctype html>
<meta charset="utf-8">
<title>Rows of a training</title>
<style>
body { font-family: monospace; line-height: 1.9; max-width: 70em; margin: 2em auto; }
span { border: 1px solid #ccc; border-radius: 3px; padding: 0 2px; margin: 1px; }
.trained { background: #b7ebc0; }
sub { color: #888; }
</style>
<p>A token with its id; the loss is over the <span class="trained">green</span> ones.</p>
)";

std::string as_html(const runs::Dataset& data, const std::vector<ShownToken>& tokens) {
  std::string text;
  for (const ShownToken& token : tokens) {
    text += fmt::format("{}<span{}>{}<sub>{}{}</sub></span>\n", token.begins ? "<br>\n" : "",
                        token.trained ? " class=\"trained\"" : "",
                        escape_markup(token_text(data, token.id)), token.id,
                        token.label.empty() ? "" : " " + escape_markup(shown(token.label, 60)));
  }
  return "<p>\n" + text + "</p>\n";
}

/// The members of records that nothing reads.
void add_unread(TableRows& rows, const std::map<std::string, std::int64_t>& unread) {
  if (unread.empty()) {
    return;
  }
  std::vector<std::string> names;
  for (const auto& [name, count] : unread) {
    names.push_back(fmt::format("{} ({})", shown(name, 30), count));
  }
  rows.push_back({"not read", "members of records: " + join_words(names)});
}

}  // namespace

int run_data_show(const TrainArguments& arguments, const DataShowArguments& shown) {
  const OpenedData run = opened(arguments);
  const std::int64_t batch = run.config.train.batch;
  const bool tags = run.config.tags();
  std::string page(shown.html.empty() ? "" : page_head);
  for (std::int64_t i = 0; i < shown.rows; ++i) {
    const std::vector<ShownToken> tokens = tokens_of(run.task->data(), i / batch, i % batch, tags);
    const std::string title = title_of(run.task->data(), i / batch, i % batch, tokens, tags);
    if (shown.html.empty()) {
      fmt::print("{}\n{}\n", title, as_text(run.task->data(), tokens, colour_on_stdout()));
    } else {
      page +=
          fmt::format("<h3>{}</h3>\n{}", escape_markup(title), as_html(run.task->data(), tokens));
    }
  }
  if (!shown.html.empty()) {
    write_output("data show", shown.html, page);
    fmt::print("page written: {}\n", shown.html);
  }
  return 0;
}

int run_data_check(const TrainArguments& arguments) {
  const OpenedData run = opened(arguments);
  const runs::Dataset& data = run.task->data();
  TableRows rows = data_rows(run.config, data);
  for (const runs::OpenedSource& source : data.sources()) {
    if (source.images) {
      rows.push_back({source.key, count_text(source.images->size(), "image")});
      add_unread(rows, source.images->unread());
    }
    if (!source.documents) {
      continue;
    }
    const data::DocumentCounts& counts = source.documents->counts();
    const std::int64_t of_record = source.documents->of_record();
    rows.push_back({source.key, fmt::format("{} {}, {} tokens, {} trained, the longest has {} "
                                            "tokens",
                                            source.documents->size() / of_record,
                                            of_record == 1 ? "documents" : "pairs of answers",
                                            counts.tokens, counts.trained, counts.longest)});
    add_unread(rows, counts.unread);
    if (counts.joined > 0) {
      rows.push_back(
          {"joined", fmt::format("{} answers begin within a token, which is not trained; "
                                 "end prompts before a blank",
                                 counts.joined)});
    }
  }
  fmt::print("{}no fault was found\n", format_table(rows));
  return 0;
}

}  // namespace tessera::app
