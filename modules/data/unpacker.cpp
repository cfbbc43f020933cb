module;
#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;

namespace tessera::data {
namespace {

/// What one step of a decoder did.
struct Step {
  std::size_t taken = 0;  // bytes of the input
  std::size_t given = 0;  // bytes of the output
  bool ends = false;      // a member or frame
  std::string wrong = {};
};

/// The members or frames of a compressed stream.
class Decoder {
 public:
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  virtual ~Decoder() = default;
  virtual Step step(std::span<const std::byte> in, std::span<std::byte> out) = 0;
};

class GzipDecoder final : public Decoder {
 public:
  GzipDecoder() {
    constexpr int only_gzip = 16;
    require(::inflateInit2(&stream_, MAX_WBITS + only_gzip) == Z_OK, "zlib: no memory");
  }
  ~GzipDecoder() override { ::inflateEnd(&stream_); }

  Step step(std::span<const std::byte> in, std::span<std::byte> out) override {
    if (ended_) {
      ::inflateReset(&stream_);
      ended_ = false;
    }
    // zlib reads the input, and its type is not const.
    stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    Step done{.taken = in.size() - stream_.avail_in,
              .given = out.size() - stream_.avail_out,
              .ends = code == Z_STREAM_END};
    ended_ = done.ends;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      done.wrong = stream_.msg == nullptr ? "it is damaged" : stream_.msg;
    }
    return done;
  }

 private:
  z_stream stream_{};
  bool ended_ = false;
};

class ZstdDecoder final : public Decoder {
 public:
  ZstdDecoder() : context_(::ZSTD_createDCtx(), &::ZSTD_freeDCtx) {
    require(context_ != nullptr, "zstd: no memory");
    // Of what a stranger's file may take: the library's own limit, whatever its version says.
    constexpr int most = 27;  // 128 MiB
    ::ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, most);
  }

  Step step(std::span<const std::byte> in, std::span<std::byte> out) override {
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const std::size_t code = ::ZSTD_decompressStream(context_.get(), &to, &from);
    Step done{.taken = from.pos, .given = to.pos};
    if (::ZSTD_isError(code) != 0) {
      done.wrong = ::ZSTD_getErrorCode(code) == ZSTD_error_frameParameter_windowTooLarge
                       ? "it needs a window of more than 128 MiB; compress it without --ultra and "
                         "--long"
                       : ::ZSTD_getErrorName(code);
    } else {
      done.ends = code == 0;
    }
    return done;
  }

 private:
  std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context_;
};

std::string_view name_of(Compression compression) {
  return compression == Compression::gzip ? "gzip" : "zstd";
}

std::unique_ptr<Decoder> decoder_of(Compression compression) {
  if (compression == Compression::gzip) {
    return std::make_unique<GzipDecoder>();
  }
  return std::make_unique<ZstdDecoder>();
}

constexpr std::size_t input_bytes = std::size_t{256} << 10;

}  // namespace

Compression compression_of(std::string_view path) {
  if (path.ends_with(".gz")) {
    return Compression::gzip;
  }
  return path.ends_with(".zst") ? Compression::zstd : Compression::none;
}

struct Unpacker::State {
  std::string path;
  Compression compression = Compression::none;
  DataFile file;
  DataFile::Handle handle;
  std::unique_ptr<Decoder> decoder;
  std::vector<std::byte> input = {};
  std::size_t used = 0;      // bytes of the input
  std::size_t position = 0;  // of the input's end in the file
  std::int64_t ended = 0;    // members or frames
  bool within = false;       // one of them
  std::size_t given = 0;     // bytes of this one

  State(std::string name, Compression kind)
      : path(std::move(name)),
        compression(kind),
        file(path),
        handle(file),
        decoder(decoder_of(kind)) {}

  std::span<const std::byte> rest() const { return std::span(input).subspan(used); }
  bool is_at_end() const { return used == input.size() && position == file.size(); }

  void fill() {
    if (used == input.size() && position < file.size()) {
      input.resize(std::min(input_bytes, file.size() - position));
      handle.read(file, position, input);
      position += input.size();
      used = 0;
    }
  }

  [[noreturn]] void refuse(std::string_view wrong) const {
    fail_input({.thing = path,
                .wrong = fmt::format("the file cannot be unpacked as {}: {} (byte {})",
                                     name_of(compression), wrong, position - rest().size())});
  }

  /// Behind a member or a frame; returns whether another one follows. The program gzip ignores
  /// zeros there, with which tapes are filled up.
  bool begins_another() {
    while (compression == Compression::gzip && ended > 0) {
      fill();
      const auto zeros =
          std::ranges::find_if(rest(), [](std::byte b) { return b != std::byte{0}; });
      const auto count = static_cast<std::size_t>(zeros - rest().begin());
      if (count == 0) {
        break;
      }
      used += count;
    }
    fill();
    return !is_at_end();
  }
};

Unpacker::Unpacker(std::string path, Compression compression)
    : state_(std::make_unique<State>(std::move(path), compression)) {}
Unpacker::~Unpacker() = default;

std::size_t Unpacker::packed() const { return state_->position; }

std::size_t Unpacker::read(std::span<std::byte> out) {
  State& state = *state_;
  std::size_t given = 0;
  while (given < out.size()) {
    if (!state.within && state.ended > 0 && !state.begins_another()) {
      break;
    }
    state.fill();
    const Step step = state.decoder->step(state.rest(), out.subspan(given));
    state.used += step.taken;
    given += step.given;
    state.given += step.given;
    if (!step.wrong.empty()) {
      state.refuse(state.ended > 0 && state.given == 0
                       ? fmt::format("behind its end are other bytes ({})", step.wrong)
                       : step.wrong);
    }
    if (!step.ends && step.taken == 0 && step.given == 0 && state.is_at_end()) {
      state.refuse("it ends too early");
    }
    state.within = !step.ends;
    if (step.ends) {
      ++state.ended;
      state.given = 0;
    }
  }
  return given;
}

std::string first_bytes(const std::string& path, std::size_t most) {
  std::string bytes;
  if (const Compression compression = compression_of(path); compression != Compression::none) {
    bytes.resize(most);
    bytes.resize(Unpacker(path, compression).read(std::as_writable_bytes(std::span(bytes))));
  } else {
    const DataFile file(path);
    bytes.resize(std::min(most, file.size()));
    DataFile::Handle(file).read(file, 0, std::as_writable_bytes(std::span(bytes)));
  }
  return bytes;
}

}  // namespace tessera::data
