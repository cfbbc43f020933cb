export module tessera.tensor:random;

import tessera.base;
import :step_context;

export namespace tessera {

/// A sequence of random numbers: element i of a call gets number (offset + i) of the stream, on
/// every device and in every layout (Philox 4x32-10; docs/random-numbers.md).
struct RandomStream {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // from the stream's name
  std::uint64_t offset = 0;
};

/// The calling rank's stream of this name; created with the rank's seed at first use. The reference
/// stays valid for the life of the thread.
RandomStream& random_stream(std::string_view name = "default");
/// Sets the seed of all streams of the calling rank and restarts them.
void set_seed(std::uint64_t seed);
/// Takes `count` numbers: returns the offset of the first and advances the stream by `count`
/// rounded up to a multiple of 4.
std::uint64_t take_numbers(RandomStream& stream, std::int64_t count);

/// All streams by name, to be saved and restored. A stream that is not in `state` restarts.
std::map<std::string, RandomStream> random_state();
void set_random_state(const std::map<std::string, RandomStream>& state);

/// Where the draws of the calling rank stand: its streams, and the micro-batch in progress.
struct RandomPosition {
  std::uint64_t seed = 0;
  std::map<std::string, RandomStream> streams;
  std::optional<MicroBatch> micro_batch;
};
RandomPosition random_position();

/// Within the scope the calling rank draws what it drew after `position` (to compute a forward
/// again); afterwards its draws continue from where they were.
class ReplayScope {
 public:
  explicit ReplayScope(const RandomPosition& position);
  ~ReplayScope();
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  RandomPosition before_;
  StepScope context_;  // with the position's micro-batch
};

/// For a StepScope within which the calling rank computes one micro-batch of a step that began at
/// `step`. All named streams return to `step`, and draws by batch row take the numbers that their
/// rows have in the whole step. So every micro-batch draws its rows of what a step without
/// micro-batches draws, and after each of them the streams stand where that step leaves them.
/// Errors: rows that are not in the step, but those of the padding; parts that are not equal.
void begin_micro_batch(StepContext& context, const RandomPosition& step,
                       const MicroBatch& micro_batch);

/// The numbers of one call: element i has number offset + i; where `run` is not 0, it has number
/// offset + (i / run) * stride + i % run.
struct RandomNumbers {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::uint64_t offset = 0;
  std::uint64_t run = 0;
  std::uint64_t stride = 0;
};

/// Which numbers a random operator draws.
class RandomSource {
 public:
  /// Number i of the call belongs to element i of the (global) tensor: for weights, and for
  /// whatever is not a batch. NOLINTNEXTLINE(google-explicit-constructor)
  inline RandomSource(RandomStream& stream) : stream_(&stream) {}

  /// Takes the numbers of a tensor of this shape for the operator `what`. Errors: a draw by batch
  /// row within a micro-batch for a tensor whose dim 0 is not a multiple of the rows.
  RandomNumbers take(std::string_view what, const Dims& shape) const;

 private:
  friend RandomSource by_batch_row(std::string_view stream);
  RandomStream* stream_;
  bool by_batch_row_ = false;
};

/// The stream of this name, drawn from by batch row: dim 0 of the tensor is the batch, alone
/// ([B, T, D]) or with dims that were flattened into it ([B * T, D]). Within a micro-batch an
/// element takes the number that it has in the tensor of the whole step. Outside of one this is
/// random_stream(stream).
RandomSource by_batch_row(std::string_view stream);

}  // namespace tessera
