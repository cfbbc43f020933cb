module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
module tessera.app.data;

import tessera.base;
import tessera.app.config;

namespace tessera::app {

Dataset::Dataset(const Config& config, std::int64_t vocab)
    : source_(open_source(config.data, vocab)),
      seq_len_(config.data.seq_len),
      batch_(config.train.batch),
      seed_(static_cast<std::uint64_t>(config.train.seed)),
      shuffled_(config.data.order == "shuffled") {
  const double share = config.data.validation;
  const auto validation_tokens =
      static_cast<std::int64_t>(std::floor(static_cast<double>(tokens()) * share));
  training_tokens_ = tokens() - validation_tokens;
  windows_ = std::max<std::int64_t>(0, (training_tokens_ - 1) / seq_len_);
  if (windows_ < batch_) {
    fail_input({.thing = "data",
                .wrong = fmt::format("too short: {} training tokens make {} windows of {}",
                                     training_tokens_, windows_, seq_len_),
                .expected =
                    fmt::format("at least {}, one batch: {} tokens", batch_, batch_ * seq_len_ + 1),
                .advice = fmt::format("add {}, or lower {}{}data.seq_len{}",
                                      config.data.tokens.empty() ? "text" : "tokens",
                                      batch_ > 1 ? "train.batch" : "",
                                      batch_ == 1  ? ""
                                      : share == 0 ? " or "
                                                   : ", ",
                                      share == 0 ? "" : " or data.validation")});
  }
  if (share == 0) {
    return;
  }
  validation_windows_ = std::max<std::int64_t>(0, (validation_tokens - 1) / seq_len_);
  const std::int64_t wanted = config.data.validation_windows > 0
                                  ? std::min(config.data.validation_windows, validation_windows_)
                                  : validation_windows_;
  validation_batches_ = wanted / batch_;
  if (validation_batches_ == 0) {
    fail_input(fmt::format(
        "data.validation: too short: {} tokens make {} windows of {}, of which {} are used "
        "(expected at least {}, one batch); raise {}, or set data.validation = 0",
        validation_tokens, validation_windows_, seq_len_, wanted, batch_,
        validation_windows_ < batch_ ? "data.validation" : "data.validation_windows"));
  }
}

std::int64_t Dataset::window_of(std::int64_t step, std::int64_t row) const {
  const std::int64_t position = step * batch_ + row;
  const std::int64_t epoch = position / windows_;
  const std::int64_t place = position % windows_;
  return shuffled_ ? Permutation(windows_, seed_, static_cast<std::uint64_t>(epoch))[place] : place;
}

Batch Dataset::rows(std::int64_t step, std::int64_t first_row, std::int64_t count) const {
  if (step < 0 || first_row < 0 || count < 0 || first_row + count > batch_) {
    fail({.thing = "data",
          .wrong = fmt::format("no rows [{}, {}) of step {} in a batch of {}", first_row,
                               first_row + count, step, batch_)});
  }
  std::vector<std::int64_t> windows(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    windows[static_cast<std::size_t>(i)] = window_of(step, first_row + i);
  }
  return read_windows(0, windows);
}

Batch Dataset::validation_rows(std::int64_t batch, std::int64_t first_row,
                               std::int64_t count) const {
  if (batch < 0 || batch >= validation_batches_ || first_row < 0 || count < 0 ||
      first_row + count > batch_) {
    fail({.thing = "data",
          .wrong = fmt::format("no rows [{}, {}) of validation batch {} of {}", first_row,
                               first_row + count, batch, validation_batches_)});
  }
  const std::int64_t used = validation_batches_ * batch_;
  std::vector<std::int64_t> windows(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    // Spread evenly: the k-th of `used` among all.
    windows[static_cast<std::size_t>(i)] =
        (batch * batch_ + first_row + i) * validation_windows_ / used;
  }
  return read_windows(training_tokens_, windows);
}

Batch Dataset::read_windows(std::int64_t base, const std::vector<std::int64_t>& windows) const {
  Batch batch;
  batch.rows = std::ssize(windows);
  batch.seq_len = seq_len_;
  const auto length = static_cast<std::size_t>(seq_len_);
  batch.inputs.reserve(windows.size() * length);
  batch.targets.reserve(windows.size() * length);
  std::vector<std::int64_t> window(length + 1);
  for (const std::int64_t w : windows) {
    source_.tokens->read(base + w * seq_len_, window);
    batch.inputs.insert(batch.inputs.end(), window.begin(), window.end() - 1);
    batch.targets.insert(batch.targets.end(), window.begin() + 1, window.end());
  }
  return batch;
}

void check_batch_division(const Config& config, std::int64_t parts) {
  const std::int64_t batch = config.train.batch;
  const std::int64_t micro = config.train.micro_batch;
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

}  // namespace tessera::app
