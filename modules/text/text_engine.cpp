module;
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.nn;

namespace tessera::text {
namespace {

std::int64_t quarter_of_machine() { return sysconf(_SC_PHYS_PAGES) / 4 * sysconf(_SC_PAGESIZE); }

}  // namespace

/// A request, as far as it has come.
struct Engine::Job {
  std::int64_t number = 0;
  EngineRequest request;
  std::vector<std::int64_t> tokens;  // the prompt and what follows it
  std::int64_t computed = 0;         // of them, whose keys and values are kept
  std::int64_t scored = 0;           // how many of the prompt need no score, or have it
  std::int64_t given = 0;            // how many of it need not give their hidden states, or have
  TextMemory::Text memory = {};
  GuessCount guesses = {};
  bool has_memory = false;
  bool left = false;

  bool writes() const { return request.tokens > 0; }
  bool has_scores() const { return scored == std::ssize(request.prompt); }
  bool asks_states() const { return request.states.take != nullptr; }
  /// The tokens that are computed: where nothing is asked of the last one, it needs not be.
  std::int64_t missing() const {
    return std::ssize(tokens) - (writes() || asks_states() ? 0 : 1) - computed;
  }
  /// Those of which nothing that is kept need be computed again: the token before one that is
  /// scored does.
  std::span<const std::int64_t> reusable() const {
    if (asks_states()) {
      return std::span(tokens).first(static_cast<std::size_t>(given + 1));
    }
    return has_scores() ? std::span(tokens)
                        : std::span(tokens).first(static_cast<std::size_t>(scored));
  }
  /// How many scores the next `count` tokens give.
  std::int64_t scores_in(std::int64_t count) const {
    const std::int64_t end = std::min(computed + count + 1, std::ssize(request.prompt));
    return std::max<std::int64_t>(end - scored, 0);
  }
  /// How many hidden states they give.
  std::int64_t states_in(std::int64_t count) const {
    return asks_states() ? std::max<std::int64_t>(computed + count - given, 0) : 0;
  }
  bool is_wanted() const { return !request.wanted || request.wanted(); }
};

/// The tokens of a request in a step, and what is asked of them: a function of another request may
/// cancel the job meanwhile.
struct Engine::Share {
  Share(Job& of, std::int64_t tokens)
      : job(&of),
        count(tokens),
        scores(of.scores_in(tokens)),
        states(of.states_in(tokens)),
        ends(tokens == of.missing()) {}

  Job* job;
  std::int64_t count;
  std::int64_t scores;
  std::int64_t states;
  bool ends;  // the last tokens that are computed before the next one is known
  std::vector<std::int64_t> guesses = {};  // that may follow them

  bool writes() const { return ends && job->writes(); }
  /// The tokens whose logits are asked for.
  std::int64_t scored() const { return writes() ? 1 + std::ssize(guesses) : 0; }
};

Engine::Engine(ModelRanks& ranks, std::int64_t vocab, const EngineOptions& options)
    : ranks_(ranks), vocab_(vocab), options_(options), alone_(ranks, vocab) {
  require(options_.most > 0 && options_.memory >= 0 && options_.prompt_tokens >= 0 &&
              options_.guesses >= 0,
          "engine: an option is out of range");
  if (ranks_.takes_batches()) {
    take_memory();
  } else if (ranks_.slow_because().empty()) {
    options_.most = 1;  // its cache has one text
  }
  if (options_.guesses > 0 && !(memory_ && memory_->shares_pages())) {
    fail_input({.thing = "speculation",
                .wrong = memory_ ? "the model's layers pass on a state, which cannot go back to "
                                   "before a wrong guess"
                                 : "the model computes texts one after the other",
                .advice = "leave out --speculate"});
  }
}

Engine::~Engine() = default;

/// After this, nothing is known of what the ranks keep.
void Engine::take_memory() {
  memory_.emplace(ranks_.text_bytes(), options_.memory > 0 ? options_.memory : quarter_of_machine(),
                  options_.most);
  known_clears_ = ranks_.clears();
}

/// What is asked of texts that are computed together.
void Engine::check_kind(const EngineRequest& request) const {
  const bool asks_states = request.states.take != nullptr;
  if (asks_states && (request.tokens > 0 || request.scored.take)) {
    fail_input({.thing = "engine", .wrong = "hidden states are asked for beside something else"});
  }
  if (asks_states && !has_states()) {
    fail_input({.thing = "hidden states",
                .wrong =
                    "the model cannot give them: it computes texts one after the other, or its "
                    "family has no head"});
  }
  if (request.adapter != 0 && !(memory_ && ranks_.takes_adapters())) {
    fail_input({.thing = "adapter",
                .wrong = "the model computes texts one after the other, and takes none by its name",
                .advice = "merge it: --adapter FOLDER"});
  }
}

std::int64_t Engine::submit(EngineRequest request) {
  const std::int64_t longest = std::ssize(request.prompt) + request.tokens;
  const bool asks_states = request.states.take != nullptr;
  if (request.prompt.empty() || request.tokens < (request.scored.take || asks_states ? 0 : 1) ||
      request.scored.first < 1) {
    fail_input({.thing = "engine", .wrong = "a prompt, or what is asked of it, has no tokens"});
  }
  check_kind(request);
  for (const std::int64_t token : request.prompt) {
    if (token < 0 || token >= vocab_) {
      fail_input({.thing = "engine",
                  .wrong = "the model does not have a token of the prompt",
                  .expected = fmt::format("0 to {}", vocab_ - 1),
                  .got = fmt::format("{}", token)});
    }
  }
  // The last token that follows is not computed.
  if (memory_ && longest - 1 > memory_->longest()) {
    fail_input({.thing = "memory",
                .wrong = "it has too little room for the keys and values of a request",
                .expected = fmt::format("at most {} tokens", memory_->longest() + 1),
                .got = fmt::format("{} of the prompt and {} that may follow", request.prompt.size(),
                                   request.tokens),
                .advice = "ask for fewer tokens, or give more with --memory"});
  }
  auto job = std::make_unique<Job>();
  job->number = ++numbers_;
  job->tokens = request.prompt;
  job->scored = request.scored.take ? std::min(request.scored.first, std::ssize(request.prompt))
                                    : std::ssize(request.prompt);
  job->given = !asks_states         ? std::ssize(request.prompt)
               : request.states.all ? 0
                                    : std::ssize(request.prompt) - 1;
  job->request = std::move(request);
  waiting_.push_back(std::move(job));
  return numbers_;
}

void Engine::cancel(std::int64_t number) {
  const auto has_number = [&](const auto& job) { return job->number == number; };
  std::erase_if(waiting_, has_number);
  const auto found = std::ranges::find_if(active_, has_number);
  if (found != active_.end()) {
    (*found)->left = true;  // a step may be at work
    give_back(**found);
  }
}

void Engine::drop_unwanted() {
  std::vector<std::unique_ptr<Job>> dropped;
  for (auto& job : waiting_) {
    const bool has_all =
        !job->writes() && job->has_scores() && job->given == std::ssize(job->request.prompt);
    if (has_all || !job->is_wanted()) {
      dropped.push_back(std::move(job));
    }
  }
  std::erase(waiting_, nullptr);
  for (const auto& job : dropped) {
    leave(*job);
  }
  for (const auto& job : active_) {
    if (!job->left && !job->is_wanted()) {
      leave(*job);
    }
  }
  remove_left();
}

/// Whether another is reading what this one would read too, up to the same end of a page.
bool Engine::waits_for_another(const Job& job) const {
  if (!memory_->shares_pages()) {
    return false;
  }
  const std::span<const std::int64_t> own = job.reusable();
  return std::ranges::any_of(active_, [&](const auto& other) {
    const auto end = std::ranges::mismatch(own, other->tokens).in1;
    // The last token is always computed.
    const std::int64_t equal = std::min(end - own.begin(), std::ssize(own) - 1);
    const std::int64_t shared = equal / PageTable::page_size * PageTable::page_size;
    return other->has_memory && other->request.adapter == job.request.adapter &&
           shared > std::max(job.computed, other->computed);
  });
}

/// Those that came first join, while there is room for more than what all have.
void Engine::admit() {
  std::int64_t looked_at = 0;
  for (auto next = waiting_.begin();
       next != waiting_.end() && std::ssize(active_) < options_.most && looked_at < options_.most;
       ++looked_at) {
    Job& job = **next;
    if (memory_) {
      constexpr std::int64_t usual = 512;  // most texts end long before their limit
      const auto memory =
          memory_->begin(job.reusable(),
                         std::ssize(job.request.prompt) +
                             std::min(std::max<std::int64_t>(job.request.tokens - 1, 0), usual),
                         job.request.adapter);
      if (!memory) {
        return;
      }
      job.memory = *memory;
      job.has_memory = true;
      job.computed = job.memory.kept;
      if (waits_for_another(job)) {
        give_back(job);
        ++next;
        continue;
      }
      // All that it reads has room, beside the next tokens of the others.
      const std::int64_t needed = job.missing() + std::ssize(active_) * PageTable::page_size;
      if (!active_.empty() && memory_->free_positions() < needed) {
        give_back(job);
        return;
      }
      counts_.kept += job.memory.kept;
    }
    active_.push_back(std::move(*next));
    next = waiting_.erase(next);
  }
  std::ranges::sort(active_, {}, [](const auto& each) { return each->number; });
}

/// Its memory is free, and what it has computed is kept as long as nothing else needs the room.
void Engine::give_back(Job& job) {
  if (job.has_memory) {
    memory_->release(job.memory, job.tokens, job.computed);
  }
  job.has_memory = false;
  job.computed = 0;
}

/// Pages for so many positions: where there are too few, of the one that came last.
bool Engine::reserve(Job& job, std::int64_t positions) {
  while (!memory_->reserve(job.memory, positions)) {
    const auto last = std::ranges::find_if(active_.rbegin(), active_.rend(),
                                           [](const auto& each) { return each->has_memory; });
    Job& victim = **last;
    give_back(victim);
    ++counts_.interrupted;
    if (&victim == &job) {
      return false;
    }
  }
  return true;
}

/// What each request gets of a step: those that are written their next token, and those that are
/// read equal shares of what a step may read.
std::vector<Engine::Share> Engine::shares() {
  std::int64_t readers = 0;
  for (const auto& job : active_) {
    readers += job->missing() > 1 ? 1 : 0;
  }
  const auto writers = std::ssize(active_) - readers;
  const std::int64_t whole =
      options_.prompt_tokens > 0 ? options_.prompt_tokens : pass_tokens(ranks_, vocab_, 1);
  // Who waits for a next token waits for a part of a pass only.
  constexpr std::int64_t beside_writers = 4;
  constexpr std::int64_t fewest = 16;
  std::int64_t left =
      writers > 0 ? std::max(whole / beside_writers, std::min(fewest, whole)) : whole;
  std::vector<Share> all;
  for (const auto& job : active_) {
    if (!job->has_memory) {
      continue;  // it gave it back for another of this step
    }
    std::int64_t count = 1;
    if (job->missing() > 1) {
      if (left == 0) {
        continue;
      }
      count = std::clamp<std::int64_t>(left / readers, 1, job->missing());
      --readers;
    }
    if (reserve(*job, job->computed + count)) {
      left -= job->missing() > 1 ? count : 0;
      all.emplace_back(*job, count);
    }
  }
  if (options_.guesses > 0) {
    guess(all);
  }
  // Texts of an adapter are next to each other: one product for their tokens.
  std::ranges::stable_sort(all, {}, [](const Share& share) { return share.job->request.adapter; });
  return all;
}

/// Gives those that are written guesses: a few rows more cost a product little, as it reads its
/// weights once. Many have no room for them, nor beside prompts that are read.
void Engine::guess(std::vector<Share>& shares) {
  constexpr std::int64_t rows = 16;
  std::int64_t left = rows;
  for (const Share& share : shares) {
    left -= share.count;
  }
  std::int64_t writers = std::ssize(shares);
  for (Share& share : shares) {
    Job& job = *share.job;
    const std::int64_t own = std::max<std::int64_t>(left, 0) / writers--;
    // The last token that follows is not computed, and memory was promised up to it.
    const std::int64_t further =
        job.request.tokens - (std::ssize(job.tokens) - std::ssize(job.request.prompt)) - 1;
    const std::int64_t most =
        std::min({own, further, options_.guesses,
                  memory_->free_positions() - PageTable::page_size * std::ssize(shares)});
    if (!share.writes() || most <= 0) {
      continue;
    }
    const std::int64_t count = job.guesses.next(most);
    std::vector<std::int64_t> guesses = repeated_tokens(job.tokens, count);
    if (!guesses.empty() &&
        memory_->reserve(job.memory, job.computed + share.count + std::ssize(guesses))) {
      left -= std::ssize(guesses);
      share.guesses = std::move(guesses);
    }
  }
}

bool Engine::step() {
  drop_unwanted();
  if (memory_ && ranks_.clears() != known_clears_) {
    for (auto job = active_.rbegin(); job != active_.rend(); ++job) {
      (*job)->computed = 0;
      give_back(**job);
      waiting_.push_front(std::move(*job));
    }
    active_.clear();
    memory_->forget();
    known_clears_ = ranks_.clears();
  }
  admit();
  if (active_.empty()) {
    return false;
  }
  ++counts_.steps;
  if (memory_) {
    compute(shares());
  } else {
    for (const auto& job : active_) {
      compute_alone(*job);
    }
  }
  remove_left();
  return true;
}

/// All that are computed end with an error.
void Engine::leave_all(const std::exception& error) {
  for (const auto& job : active_) {
    job->computed = 0;
    leave(*job, &error);
  }
  memory_->forget();
}

void Engine::compute(const std::vector<Share>& shares) {
  nn::RaggedBatch batch{
      .places = memory_->places(), .states = memory_->states(), .exact = options_.exact};
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> adapters;
  std::vector<TokenRequest> asked;
  for (const Share& share : shares) {
    Job* const job = share.job;
    const std::int64_t count = share.count;
    const std::int64_t begin = std::ssize(tokens);
    adapters.push_back(job->request.adapter);
    batch.rows.push_back(
        memory_->row(job->memory, job->computed, count + std::ssize(share.guesses)));
    const auto own =
        std::span(job->tokens)
            .subspan(static_cast<std::size_t>(job->computed), static_cast<std::size_t>(count));
    tokens.insert(tokens.end(), own.begin(), own.end());
    for (std::int64_t at = 0; at < share.scores; ++at) {
      batch.scored.push_back(begin + job->scored - 1 - job->computed + at);
      asked.push_back({.next = job->tokens[static_cast<std::size_t>(job->scored + at)],
                       .likeliest = job->request.scored.likeliest});
    }
    for (std::int64_t at = count - share.states; at < count; ++at) {
      batch.scored.push_back(begin + at);
      asked.push_back({.states = true});
    }
    for (std::int64_t at = 0; at < share.scored(); ++at) {
      batch.scored.push_back(begin + count - 1 + at);
      asked.emplace_back();
    }
    tokens.insert(tokens.end(), share.guesses.begin(), share.guesses.end());
  }
  std::vector<double> values;
  try {
    values = ranks_.batch_values(batch, tokens, asked, adapters);
    lost_ = 0;
  } catch (const RestartedRanks& error) {
    // Nothing is lost but time: the next step finds that nothing is kept. What comes with each
    // death may be its reason.
    constexpr int most_deaths = 3;
    if (++lost_ >= most_deaths) {
      lost_ = 0;
      leave_all(error);
    }
    return;
  } catch (const std::exception& error) {
    leave_all(error);
    return;
  }
  known_clears_ = ranks_.clears();
  std::size_t at = 0;
  const auto next_values = [&](std::int64_t count) {
    return std::span(values).subspan(std::exchange(at, at + static_cast<std::size_t>(count)),
                                     static_cast<std::size_t>(count));
  };
  for (const Share& share : shares) {
    Job& job = *share.job;
    const TokenRequest score{.next = 0, .likeliest = job.request.scored.likeliest};
    const std::int64_t features = ranks_.state_features();
    const auto scores = next_values(share.scores * score.values(vocab_, features));
    const auto states = next_values(share.states * features);
    const auto logits = next_values(share.scored() * vocab_);
    if (job.left) {
      continue;  // another one's function has cancelled it
    }
    counts_.read += job.computed < std::ssize(job.request.prompt) ? share.count : 0;
    job.computed += share.count;
    memory_->know(job.memory, job.tokens, job.computed);
    take_scores(job, scores, static_cast<std::size_t>(score.values(vocab_, features)));
    take_states(job, states);
    if (!job.left && share.ends) {
      share.writes() ? write_all(share, logits) : leave(job);
    }
  }
}

/// The next token of a request, and those after guesses that were right: each has the logits that
/// it would have in a step of its own.
void Engine::write_all(const Share& share, std::span<const double> logits) {
  Job& job = *share.job;
  const auto vocab = static_cast<std::size_t>(vocab_);
  std::size_t right = 0;
  for (std::size_t at = 0; at <= share.guesses.size(); ++at) {
    const auto own = logits.subspan(at * vocab, vocab);
    write(job, {own.begin(), own.end()});
    if (job.left || at == share.guesses.size() || job.tokens.back() != share.guesses[at]) {
      break;
    }
    ++right;
    ++job.computed;  // as a guess
    memory_->know(job.memory, job.tokens, job.computed);
  }
  const std::int64_t guessed = std::ssize(share.guesses);
  job.guesses.learn(guessed, static_cast<std::int64_t>(right));
  counts_.guessed += guessed;
  counts_.right += static_cast<std::int64_t>(right);
}

/// The likelihoods of the next tokens of a prompt.
void Engine::take_scores(Job& job, std::span<const double> values, std::size_t of_token) {
  try {
    for (std::size_t at = 0; at < values.size() && !job.left; at += of_token) {
      const std::int64_t token = job.tokens[static_cast<std::size_t>(job.scored++)];
      job.request.scored.take(read_likelihoods(values.subspan(at, of_token), token));
    }
  } catch (const std::exception& error) {
    leave(job, &error);
  }
}

/// The hidden states of the next tokens of a prompt.
void Engine::take_states(Job& job, std::span<const double> values) {
  const auto features = static_cast<std::size_t>(ranks_.state_features());
  try {
    for (std::size_t at = 0; at < values.size() && !job.left; at += features) {
      ++job.given;
      job.request.states.take(values.subspan(at, features));
    }
  } catch (const std::exception& error) {
    leave(job, &error);
  }
}

/// All of its tokens so far, of which the ranks may have kept some.
void Engine::compute_alone(Job& job) {
  if (job.left) {
    return;
  }
  try {
    if (!job.has_scores()) {
      const auto all = ranks_.likelihoods(job.request.prompt, job.request.scored.likeliest);
      while (!job.left && !job.has_scores()) {
        job.request.scored.take(all[static_cast<std::size_t>(job.scored++) - 1]);
      }
    }
    if (!job.left && !job.writes()) {
      leave(job);
      return;
    }
    const auto wanted = [&] { return !job.left && job.is_wanted(); };
    const auto logits = alone_.next({job.tokens}, wanted);
    counts_.read +=
        std::ssize(job.tokens) == std::ssize(job.request.prompt) ? std::ssize(job.tokens) : 0;
    logits.empty() ? leave(job) : write(job, logits[0]);
  } catch (const RestartedRanks& error) {
    // The same as in compute().
    constexpr int most_deaths = 3;
    if (++lost_ >= most_deaths) {
      lost_ = 0;
      leave(job, &error);
    }
  } catch (const std::exception& error) {
    leave(job, &error);
  }
}

/// The next token of a request.
void Engine::write(Job& job, const std::vector<double>& logits) {
  try {
    const auto token = job.request.next(logits);
    if (job.left) {
      return;  // it was cancelled
    }
    if (!token) {
      leave(job);
      return;
    }
    require(*token >= 0 && *token < vocab_, "engine: the next token is none of the model's");
    job.tokens.push_back(*token);
    ++counts_.written;
    // Its limit is what memory was promised for.
    if (std::ssize(job.tokens) - std::ssize(job.request.prompt) >= job.request.tokens) {
      leave(job);
    }
  } catch (const std::exception& error) {
    leave(job, &error);
  }
}

void Engine::leave(Job& job, const std::exception* error) {
  if (std::exchange(job.left, true)) {
    return;
  }
  give_back(job);
  if (job.request.ended) {
    job.request.ended(error);
  }
}

/// Takes out those that have left, and lets those wait that gave back their memory.
void Engine::remove_left() {
  for (auto job = active_.rbegin(); job != active_.rend(); ++job) {
    if (!(*job)->left && memory_ && !(*job)->has_memory) {
      waiting_.push_front(std::move(*job));
    }
  }
  std::erase_if(active_, [](const auto& job) { return job == nullptr || job->left; });
}

std::int64_t Engine::size() const { return std::ssize(waiting_) + std::ssize(active_); }

EngineCounts Engine::counts() const {
  EngineCounts counts = counts_;
  counts.computing = std::ssize(active_);
  counts.waiting = std::ssize(waiting_);
  if (memory_) {
    counts.pages = memory_->pages().used();
    counts.most_pages = memory_->pages().most();
  }
  return counts;
}

}  // namespace tessera::text
