module;
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.stores;
import tessera.tensor;
import tessera.ops;
import tessera.checkpoint;
import tessera.hub;
import tessera.encoders;
import tessera.app.base;
import :embed;
import :stored_paths;

namespace tessera::app {
namespace {

struct EmbedArguments {
  std::string model;
  std::string texts;  // a file; empty: stdin
  std::string to;     // a file; empty: stdout
  std::string pooling = "mean";
  bool normalize = false;
  std::int64_t tokens = 0;  // of a text, at most; 0: as many as the model takes
  std::int64_t batch = 16;
};

std::vector<std::string> lines_of(std::istream& from, const std::string& name) {
  constexpr std::size_t longest_line = 16'000'000;
  std::vector<std::string> lines;
  for (std::string line; std::getline(from, line);) {
    if (line.size() > longest_line) {
      fail_input(
          {.thing = name, .wrong = fmt::format("line {} has more than 16 MB", lines.size() + 1)});
    }
    lines.push_back(std::move(line));
  }
  if (lines.empty()) {
    fail_input({.thing = name, .wrong = "there are no texts", .expected = "one in each line"});
  }
  return lines;
}

std::vector<std::string> read_texts(const std::string& path) {
  if (path.empty()) {
    return lines_of(std::cin, "stdin");
  }
  std::ifstream file(path);
  if (!file) {
    fail_input({.thing = path, .wrong = "cannot be read"});
  }
  return lines_of(file, path);
}

/// Rows of length 1.
void normalize(std::vector<double>& values, std::size_t dim) {
  for (std::size_t begin = 0; begin < values.size(); begin += dim) {
    double squares = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      squares += values[begin + i] * values[begin + i];
    }
    for (std::size_t i = 0; i < dim && squares > 0; ++i) {
      values[begin + i] /= std::sqrt(squares);
    }
  }
}

/// One array of JSON for each row.
void print_rows(std::span<const double> values, std::size_t dim) {
  for (std::size_t begin = 0; begin < values.size(); begin += dim) {
    std::string line;
    for (const double value : values.subspan(begin, dim)) {
      line += fmt::format("{}{:.7g}", line.empty() ? "" : ",", value);
    }
    line = "[" + line + "]\n";
    std::fwrite(line.data(), 1, line.size(), stdout);
  }
}

int run_embed(EmbedArguments arguments) {
  const stores::LocalInput local(arguments.model, {.choose = hub::leave_out_other_formats});
  arguments.model = local.path();
  const encoders::EncoderFolder folder(arguments.model);
  const encoders::EncoderShape& shape = folder.config().shape;
  if (shape.takes_images()) {
    fail_input({.thing = arguments.model,
                .wrong = "the model takes images, and this command has lines of text"});
  }
  const hub::ModelTokenizer tokenizer =
      hub::folder_tokenizer(arguments.model, "{}", arguments.model);
  InputCopies copies;
  copies.take(arguments.texts);
  const std::vector<std::string> texts = read_texts(arguments.texts);
  const auto model = encoders::encoder_from_folder(arguments.model);
  model->train(false);
  const NoGrad no_grad;
  const std::int64_t longest =
      arguments.tokens > 0 ? std::min(arguments.tokens, shape.max_positions) : shape.max_positions;
  const auto pooling =
      arguments.pooling == "mean" ? encoders::Pooling::mean : encoders::Pooling::first;
  const auto dim = static_cast<std::size_t>(shape.dim);
  std::vector<double> all;
  std::int64_t cut = 0;
  const auto batch = static_cast<std::size_t>(arguments.batch);
  for (std::size_t begin = 0; begin < texts.size(); begin += batch) {
    const auto some = std::span(texts).subspan(begin, std::min(batch, texts.size() - begin));
    const encoders::TokenRows rows =
        encoders::token_rows(*tokenizer.opened.tokenizer, some, longest, shape.vocab,
                             std::max<std::int64_t>(shape.padding, 0));
    cut += rows.cut;
    std::vector<double> vectors =
        to_doubles(model->embeddings(Tensors{rows.ids, rows.mask}, pooling));
    if (arguments.normalize) {
      normalize(vectors, dim);
    }
    if (arguments.to.empty()) {
      print_rows(vectors, dim);
    } else {
      all.insert(all.end(), vectors.begin(), vectors.end());
    }
  }
  if (cut > 0) {
    fmt::print(stderr, "{} longer than {} tokens: cut\n", count_text(cut, "text"), longest);
  }
  if (!arguments.to.empty()) {
    const Tensor values = ops::cast(
        from_values(std::span<const double>(all), {std::ssize(texts), shape.dim}), DType::f32);
    SafetensorsWriter file(arguments.to, {{"embeddings", TensorInfo{DType::f32, values.shape()}}});
    file.write("embeddings", values);
    file.finish();
    fmt::print("{} of {} numbers written to {}\n", count_text(std::ssize(texts), "vector"), dim,
               arguments.to);
  }
  return 0;
}

}  // namespace

void add_embed_command(CLI::App& program, std::function<int()>& chosen) {
  const auto arguments = std::make_shared<EmbedArguments>();
  CLI::App* const command = program.add_subcommand(
      "embed", "Print a vector for each line of text, by an encoder (BERT, ModernBERT)");
  command->callback([&chosen, arguments] { chosen = [=] { return run_embed(*arguments); }; });
  command->add_option("MODEL", arguments->model, "A folder of transformers with its tokenizer")
      ->required();
  command
      ->add_option("--texts", arguments->texts, "A file with a text in each line; default: stdin")
      ->type_name("FILE");
  command
      ->add_option("--to", arguments->to,
                   "Write a safetensors file with the matrix 'embeddings' instead of printing "
                   "arrays of JSON")
      ->type_name("FILE");
  command
      ->add_option("--pooling", arguments->pooling,
                   "Whose hidden states: the mean of all tokens, or the first token")
      ->check(CLI::IsMember({"mean", "first"}))
      ->capture_default_str();
  command->add_flag("--normalize", arguments->normalize, "Scale each vector to the length 1");
  command
      ->add_option("--tokens", arguments->tokens,
                   "Cut longer texts to so many tokens; default: as many as the model takes")
      ->check(CLI::PositiveNumber);
  command->add_option("--batch", arguments->batch, "Texts that are computed at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

}  // namespace tessera::app
