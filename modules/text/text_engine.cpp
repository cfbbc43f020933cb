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
  TextMemory::Text memory = {};
  bool has_memory = false;
  bool left = false;

  std::int64_t missing() const { return std::ssize(tokens) - computed; }
  bool is_wanted() const { return !request.wanted || request.wanted(); }
};

/// The tokens of a request in a step.
struct Engine::Share {
  Job* job = nullptr;
  std::int64_t count = 0;
};

Engine::Engine(ModelRanks& ranks, std::int64_t vocab, const EngineOptions& options)
    : ranks_(ranks), vocab_(vocab), options_(options), alone_(ranks, vocab) {
  require(options_.most > 0 && options_.memory >= 0 && options_.prompt_tokens >= 0,
          "engine: an option is out of range");
  if (ranks_.takes_batches()) {
    take_memory();
  } else if (ranks_.slow_because().empty()) {
    options_.most = 1;  // its cache has one text
  }
}

Engine::~Engine() = default;

/// After this, nothing is known of what the ranks keep.
void Engine::take_memory() {
  memory_.emplace(ranks_.text_bytes(), options_.memory > 0 ? options_.memory : quarter_of_machine(),
                  options_.most);
  known_clears_ = ranks_.clears();
}

std::int64_t Engine::submit(EngineRequest request) {
  const std::int64_t longest = std::ssize(request.prompt) + request.tokens;
  if (request.prompt.empty() || request.tokens < 1) {
    fail_input({.thing = "engine", .wrong = "a prompt, or what follows it, has no tokens"});
  }
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
    if (!job->is_wanted()) {
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

/// Those that came first join, while there is room for more than what all have.
void Engine::admit() {
  while (!waiting_.empty() && std::ssize(active_) < options_.most) {
    Job& job = *waiting_.front();
    if (memory_) {
      constexpr std::int64_t usual = 512;  // most texts end long before their limit
      const auto memory = memory_->begin(
          job.tokens, std::ssize(job.request.prompt) + std::min(job.request.tokens - 1, usual));
      if (!memory) {
        return;
      }
      job.memory = *memory;
      job.has_memory = true;
      job.computed = job.memory.kept;
      // All that it reads has room, beside the next tokens of the others.
      const std::int64_t needed = job.missing() + std::ssize(active_) * PageTable::page_size;
      if (!active_.empty() && memory_->free_positions() < needed) {
        give_back(job);
        return;
      }
      counts_.kept += job.memory.kept;
    }
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    std::ranges::sort(active_, {}, [](const auto& each) { return each->number; });
  }
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
      all.push_back({job.get(), count});
    }
  }
  return all;
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

void Engine::compute(const std::vector<Share>& shares) {
  nn::RaggedBatch batch{
      .places = memory_->places(), .states = memory_->states(), .exact = options_.exact};
  std::vector<std::int64_t> tokens;
  for (const auto& [job, count] : shares) {
    batch.rows.push_back(memory_->row(job->memory, job->computed, count));
    const auto own =
        std::span(job->tokens)
            .subspan(static_cast<std::size_t>(job->computed), static_cast<std::size_t>(count));
    tokens.insert(tokens.end(), own.begin(), own.end());
    if (count == job->missing()) {
      batch.scored.push_back(std::ssize(tokens) - 1);
    }
  }
  std::vector<double> logits;
  try {
    logits = ranks_.batch_logits(batch, tokens);
  } catch (const std::exception& error) {
    for (const auto& job : active_) {
      job->computed = 0;
      leave(*job, &error);
    }
    memory_->forget();
    return;
  }
  known_clears_ = ranks_.clears();
  std::size_t scored = 0;
  for (const auto& [job, count] : shares) {
    const bool writes = count == job->missing();
    const std::size_t begin = scored * static_cast<std::size_t>(vocab_);
    scored += writes ? 1 : 0;
    if (job->left) {
      continue;  // another one's function has cancelled it
    }
    counts_.read += job->computed < std::ssize(job->request.prompt) ? count : 0;
    job->computed += count;
    memory_->know(job->memory, job->tokens, job->computed);
    if (writes) {
      const auto own = std::span(logits).subspan(begin, static_cast<std::size_t>(vocab_));
      write(*job, {own.begin(), own.end()});
    }
  }
}

/// All of its tokens so far, of which the ranks may have kept some.
void Engine::compute_alone(Job& job) {
  if (job.left) {
    return;
  }
  try {
    const auto wanted = [&] { return !job.left && job.is_wanted(); };
    const auto logits = alone_.next({job.tokens}, wanted);
    counts_.read +=
        std::ssize(job.tokens) == std::ssize(job.request.prompt) ? std::ssize(job.tokens) : 0;
    logits.empty() ? leave(job) : write(job, logits[0]);
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
