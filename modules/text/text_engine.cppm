export module tessera.text:text_engine;

import tessera.base;
import tessera.nn;
import :model_ranks;
import :decoding;
import :sampling;
import :text_memory;
import :token_guesses;

// Many texts that a model continues at the same time.

export namespace tessera::text {

/// What is asked of a prompt itself: how likely its tokens are after those before them.
struct ScoredPrompt {
  std::int64_t first = 1;      // the place of the first of them, from 1
  std::int64_t likeliest = 0;  // with so many of the likeliest tokens in each place
  /// Called for one after the other, once. Empty: nothing is asked.
  std::function<void(const TokenLikelihoods&)> take = nullptr;
};

/// What is asked of the last hidden states of a prompt's tokens.
struct StateRequest {
  bool all = false;  // of all tokens; otherwise of the last one
  /// Called for one token after the other, once. Empty: nothing is asked.
  std::function<void(std::span<const double> states)> take = nullptr;
};

/// A text to be continued. The engine calls the functions within Engine::step().
struct EngineRequest {
  std::vector<std::int64_t> prompt;
  /// That follow, at most: what it may need memory for; 0: only `scored` or `states`.
  std::int64_t tokens = 1;
  ScoredPrompt scored = {};
  StateRequest states = {};  // with neither of them
  std::int64_t adapter = 0;  // see ModelRanks::add_adapter; 0: none
  /// The token that follows, by its logits [vocab]; none: the text has ended. Empty where none may
  /// follow.
  std::function<std::optional<std::int64_t>(const std::vector<double>& logits)> next = nullptr;
  /// Asked before each step; where it is false, the request leaves. May be empty.
  std::function<bool()> wanted = nullptr;
  /// The last call, unless it was cancelled: the text has ended or is not wanted, or `error` is
  /// what was wrong with it (then std::current_exception() is it); null: nothing was.
  std::function<void(const std::exception* error)> ended = nullptr;
};

/// How many requests an engine computes, in which memory, and how.
struct EngineOptions {
  std::int64_t most = 64;  // requests that are computed at the same time
  std::int64_t memory =
      0;  // bytes of keys, values and states of a rank; 0: a quarter of the machine's
  /// A request's logits have the same bits alone and among others, with and without what is kept of
  /// its beginning, and however its prompt is cut.
  bool exact = true;
  std::int64_t prompt_tokens = 0;  // of a step, at most; 0: as many as take about a second
  /// Of a text, beside its next token, which a step checks, at most: guesses by repeated_tokens().
  /// Each text stays what it is without them; with `exact`, bit by bit. 0: none.
  std::int64_t guesses = 0;
};

/// What an engine has done since it began, and has now.
struct EngineCounts {
  std::int64_t steps = 0;
  std::int64_t read = 0;         // tokens of prompts that were computed
  std::int64_t kept = 0;         // tokens of prompts that were there already
  std::int64_t written = 0;      // tokens that followed
  std::int64_t guessed = 0;      // tokens that were checked as guesses
  std::int64_t right = 0;        // of them, those that followed
  std::int64_t interrupted = 0;  // requests that gave back their memory, and were read again
  std::int64_t computing = 0;    // requests now
  std::int64_t waiting = 0;      // requests now, which are not computed yet
  std::int64_t pages = 0;        // that belong to requests now
  std::int64_t most_pages = 0;
};

/// Continues texts of a model together: requests join and leave between steps. A step computes the
/// next token of each text that is written, and a part of each prompt that is read. What begins as
/// another that is being read waits for what they share. Where memory is used up, the request that
/// came last gives back its own and is read again later. Models that cannot compute several texts
/// at once (ModelRanks::takes_batches) compute one after the other.
class Engine {
 public:
  /// The model's ranks must outlive it, and are used by nothing else between its steps, except by
  /// what computes without a cache. `vocab`: the logits of a token. Errors (input): those of
  /// TextMemory; guesses for a model that computes texts one after the other, or whose layers pass
  /// on a state, which cannot go back.
  Engine(ModelRanks& ranks, std::int64_t vocab, const EngineOptions& options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Why whole texts are computed for each token; empty: they are not.
  const std::string& slow_because() const { return ranks_.slow_because(); }
  /// A request's number. Errors (input): no tokens, a token that the model does not have; nothing
  /// is asked, or hidden states beside something else; an adapter or hidden states of a model that
  /// computes texts one after the other; it needs more memory than there is.
  std::int64_t submit(EngineRequest request);
  /// It leaves, and its memory is free at once; none of its functions is called any more.
  void cancel(std::int64_t number);
  /// Computes a step. False: there is no request. What is wrong with one request, such as an
  /// exception of its functions, is said to it, and an error of the model to all that it computes.
  bool step();
  /// Requests that are computed at the same time, at most.
  std::int64_t most() const { return options_.most; }
  /// Whether hidden states can be asked for.
  bool has_states() const { return memory_ && ranks_.state_features() > 0; }
  /// Requests that wait or are computed.
  std::int64_t size() const;
  EngineCounts counts() const;

 private:
  struct Job;
  struct Share;
  void take_memory();
  void check_kind(const EngineRequest& request) const;
  void drop_unwanted();
  void admit();
  bool waits_for_another(const Job& job) const;
  std::vector<Share> shares();
  void guess(std::vector<Share>& shares);
  bool reserve(Job& job, std::int64_t positions);
  void give_back(Job& job);
  void compute(const std::vector<Share>& shares);
  void leave_all(const std::exception& error);
  void compute_alone(Job& job);
  void take_states(Job& job, std::span<const double> values);
  void take_scores(Job& job, std::span<const double> values, std::size_t of_token);
  void write_all(const Share& share, std::span<const double> logits);
  void write(Job& job, const std::vector<double>& logits);
  void leave(Job& job, const std::exception* error = nullptr);
  void remove_left();

  ModelRanks& ranks_;
  std::int64_t vocab_;
  EngineOptions options_;
  Decoding alone_;
  std::optional<TextMemory> memory_;  // none: texts are computed one after the other
  std::deque<std::unique_ptr<Job>> waiting_;
  std::vector<std::unique_ptr<Job>> active_;  // in the order in which they came
  std::int64_t numbers_ = 0;
  EngineCounts counts_;
  int lost_ = 0;                    // steps one after the other that were lost with their ranks
  std::int64_t known_clears_ = -1;  // ModelRanks::clears(), when it last computed
};

}  // namespace tessera::text
