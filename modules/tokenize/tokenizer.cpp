module;
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <tessera/limits.hpp>
#include <utility>
#include <vector>

#include "utf8.hpp"
module tessera.tokenize;

import tessera.base;
import tessera.plugin;

namespace tessera::tokenize {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<Tokenizer>();

}  // namespace

bool ByteRange::operator==(const ByteRange& other) const {
  return begin == other.begin && end == other.end;
}

Tokenizer::~Tokenizer() = default;
bool Tokenizer::is_special(TokenId /*id*/) const { return false; }
SpecialTokens Tokenizer::special_tokens() const { return {}; }

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  encode_to(text, options, ids, nullptr);
  return ids;
}

Encoding Tokenizer::encode_with_offsets(std::string_view text, const EncodeOptions& options) const {
  Encoding encoding;
  encode_to(text, options, encoding.ids, &encoding.offsets);
  return encoding;
}

std::vector<std::vector<TokenId>> encode_all(const Tokenizer& tokenizer,
                                             std::span<const std::string_view> texts,
                                             const EncodeOptions& options, int threads) {
  std::vector<std::vector<TokenId>> out(texts.size());
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < texts.size(); i = next++) {
        tokenizer.encode_to(texts[i], options, out[i], nullptr);
      }
    } catch (...) {
      next = texts.size();
      const std::scoped_lock lock(mutex);
      if (!error) {
        error = std::current_exception();
      }
    }
  };
  const std::size_t wanted = static_cast<std::size_t>(threads > 0 ? threads : available_cores());
  Threads others;
  for (std::size_t i = 1; i < std::min(wanted, texts.size()); ++i) {
    others.start("tokenizer", work);
  }
  work();
  others.join();
  if (error) {
    std::rethrow_exception(error);
  }
  return out;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

void StreamDecoder::start_after(std::vector<TokenId> ids) {
  ids_ = std::move(ids);
  given_ = ids_.size();
  after_other_ = !ids_.empty();
}

/// Whether a decoder of byte fallback takes it for a byte. Of another decoder's token with such a
/// name, the text only comes later.
bool StreamDecoder::is_byte(TokenId id) const {
  const std::string token = tokenizer_.token(id).value_or("");
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

std::string StreamDecoder::add(TokenId id) {
  if (std::exchange(after_other_, false) && is_byte(id) && is_byte(ids_.back())) {
    ids_.clear();
    given_ = 0;
  }
  ids_.push_back(id);
  if (is_byte(id) || (skip_special_ && tokenizer_.is_special(id))) {
    return "";
  }
  // What a token becomes may depend on the ones before it (a space that only the first one lacks),
  // so those of the last part are decoded again.
  const std::string before = tokenizer_.decode(std::span(ids_).first(given_), skip_special_);
  std::string all = tokenizer_.decode(ids_, skip_special_);
  if (all.size() <= before.size() || all.ends_with(replacement_character)) {
    return "";
  }
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(given_));
  given_ = ids_.size();
  return all.substr(before.size());
}

std::string StreamDecoder::finish() {
  const std::string before = tokenizer_.decode(std::span(ids_).first(given_), skip_special_);
  const std::string all = tokenizer_.decode(ids_, skip_special_);
  ids_.clear();
  given_ = 0;
  after_other_ = false;
  return all.size() > before.size() ? all.substr(before.size()) : "";
}

}  // namespace tessera::tokenize
