#include "pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "utf8.hpp"

import tessera.base;

namespace tessera::tokenize {
namespace {

/// A text with U+FFFD in the place of what is not valid.
void repair(Text& text, std::size_t valid) {
  const std::string_view view = text.view();
  Rewriter out(text);
  for (std::size_t at = 0; at < view.size();) {
    out.keep(at, at + valid);
    at += valid;
    if (at < view.size()) {
      const std::size_t broken = broken_bytes(view.substr(at));
      out.put(replacement_character, at, at + broken);
      at += broken;
    }
    valid = valid_bytes(view.substr(at));
  }
  out.finish();
}

/// Where the first mark is that follows another character.
std::uint32_t end_of_word(std::string_view text, std::string_view mark) {
  std::size_t at = 0;
  while (text.substr(at).starts_with(mark)) {
    at += mark.size();
  }
  return static_cast<std::uint32_t>(std::min(text.find(mark, at), text.size()));
}

/// Applies a step; an error names it where the text becomes too large.
template <class Step, class... A>
void apply(const Step& step, Text& text, A&... arguments) {
  const std::size_t before = text.view().size();
  try {
    step.apply(text, arguments...);
  } catch (const TextSizeError& large) {
    fail_input(
        {.thing = step.where.empty() ? "tokenizer" : step.where,
         .wrong = fmt::format("a text of {} bytes grows to more than {} bytes", before, large.most),
         .advice = "use another tokenizer"});
  }
}

}  // namespace

std::unique_ptr<Pipeline::Work> Pipeline::take() const {
  const std::scoped_lock lock(mutex_);
  if (idle_.empty()) {
    auto work = std::make_unique<Work>();
    work->normal.allowance = &work->allowance;
    work->words.allowance = &work->allowance;
    return work;
  }
  std::unique_ptr<Work> work = std::move(idle_.back());
  idle_.pop_back();
  return work;
}

void Pipeline::give(std::unique_ptr<Work> work) const {
  const std::scoped_lock lock(mutex_);
  idle_.push_back(std::move(work));
}

std::string Pipeline::normalized(std::string_view text) const {
  Allowance allowance(text.size());
  Text changed;
  changed.allowance = &allowance;
  changed.reset(text, 0, false);
  for (const auto& step : normalizers) {
    apply(*step, changed);
  }
  return std::string(changed.view());
}

void Pipeline::encode(std::string_view text, bool parse_special, TokenSink& sink) const {
  if (text.size() > std::numeric_limits<std::uint32_t>::max() / 4) {
    fail_input({.thing = "tokenizer",
                .wrong = "a text is too large",
                .expected = "at most 1 GiB",
                .got = format_bytes(text.size()),
                .advice = "split it"});
  }
  std::unique_ptr<Work> work = take();
  const bool tracked =
      sink.sources != nullptr ||
      std::ranges::any_of(pre_tokenizers, [](const auto& step) { return step->needs_sources(); });
  work->allowance = Allowance(text.size());
  Text& whole = work->whole;
  whole.reset(text, 0, tracked);
  if (const std::size_t valid = valid_bytes(text); valid < text.size()) {
    repair(whole, valid);
  }
  work->sections.clear();
  if (added.empty()) {
    work->sections.push_back({{0, static_cast<std::uint32_t>(whole.view().size())}, -1});
  } else {
    added.find(whole.view(), parse_special, work->sections);
  }
  for (const Section& section : work->sections) {
    if (section.id >= 0) {
      sink.add(section.id, whole.source(section.piece));
      continue;
    }
    Text& normal = work->normal;
    normal.reset(whole, section.piece, tracked);
    for (const auto& step : normalizers) {
      apply(*step, normal);
    }
    const Piece all = {0, static_cast<std::uint32_t>(normal.view().size())};
    if (normalized_added.empty()) {
      encode_words(normal, all, tracked, *work, sink);
      continue;
    }
    work->inner.clear();
    normalized_added.find(normal.view(), parse_special, work->inner);
    for (const Section& inner : work->inner) {
      if (inner.id >= 0) {
        sink.add(inner.id, normal.source(inner.piece));
      } else {
        encode_words(normal, inner.piece, tracked, *work, sink);
      }
    }
  }
  give(std::move(work));
}

void Pipeline::encode_words(const Text& text, Piece part, bool tracked, Work& work,
                            TokenSink& sink) const {
  if (part.begin == part.end) {
    return;
  }
  Text& words = work.words;
  words.reset(text, part, tracked);
  work.pieces.assign(1, {0, part.end - part.begin});
  for (const auto& step : pre_tokenizers) {
    apply(*step, words, work.pieces, work.split);
  }
  const std::string_view mark = model->divides_before();
  for (Piece piece : work.pieces) {
    while (!mark.empty() && piece.begin < piece.end) {
      const std::uint32_t end = end_of_word(words.view(piece), mark) + piece.begin;
      add_word(words, {piece.begin, end}, work, sink);
      piece.begin = end;
    }
    if (piece.begin < piece.end) {
      add_word(words, piece, work, sink);
    }
  }
}

void Pipeline::add_word(const Text& words, Piece piece, Work& work, TokenSink& sink) const {
  const std::span<const Part> parts = work.cache.find(words.view(piece), *model);
  if (sink.sources == nullptr) {
    for (const Part& one : parts) {
      sink.ids.push_back(one.id);
    }
    return;
  }
  std::uint32_t at = piece.begin;
  for (const Part& one : parts) {
    const std::uint32_t end = std::min(at + one.bytes, piece.end);
    sink.add(one.id, words.source(Piece{at, end}));
    at = end;
  }
}

}  // namespace tessera::tokenize
