module;
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.app.server;

import tessera.base;
import tessera.app.generation;

namespace tessera::app {

struct AnswerJob::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::string unread;
  GeneratedText text;
  std::optional<std::string> problem;
  bool ended = false;
  bool cancelled = false;
};

AnswerJob::AnswerJob(std::vector<std::int64_t> prompt, GenerationOptions options,
                     std::chrono::seconds most_seconds)
    : prompt_(std::move(prompt)),
      options_(std::move(options)),
      most_seconds_(most_seconds),
      state_(std::make_unique<State>()) {}
AnswerJob::~AnswerJob() = default;

std::string AnswerJob::read() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->ended || !state_->unread.empty(); });
  return std::exchange(state_->unread, {});
}

GeneratedText AnswerJob::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->ended; });
  if (state_->problem) {
    fail(*state_->problem);
  }
  return state_->text;
}

void AnswerJob::cancel() {
  const std::lock_guard lock(state_->mutex);
  state_->cancelled = true;
}

bool AnswerJob::add(const std::string& part) {
  const std::lock_guard lock(state_->mutex);
  state_->unread += part;
  state_->changed.notify_all();
  return !state_->cancelled;
}

void AnswerJob::end(GeneratedText text, std::optional<std::string> problem) {
  const std::lock_guard lock(state_->mutex);
  state_->text = std::move(text);
  state_->problem = std::move(problem);
  state_->ended = true;
  state_->changed.notify_all();
}

void AnswerJob::refuse(const std::string& why) { end({}, why); }

void AnswerJob::run(const TextModel& model, Decoding& decoding,
                    const std::function<bool()>& wanted) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->cancelled) {  // nobody waits any more
      state_->ended = true;
      return;
    }
  }
  const auto end_at = std::chrono::steady_clock::now() + most_seconds_;
  try {
    auto texts =
        generate(model, decoding, std::span(&prompt_, 1), options_,
                 [&](std::size_t, const std::string& part) {
                   return add(part) && wanted() && std::chrono::steady_clock::now() < end_at;
                 });
    end(std::move(texts.at(0)), std::nullopt);
  } catch (const std::exception& error) {
    end({}, error.what());
  }
}

struct JobQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<AnswerJob>> waiting;
  std::size_t most;
  bool closed = false;
};

JobQueue::JobQueue(std::size_t most) : state_(std::make_unique<State>()) { state_->most = most; }
JobQueue::~JobQueue() = default;

bool JobQueue::add(std::shared_ptr<AnswerJob> job) {
  const std::lock_guard lock(state_->mutex);
  if (state_->closed || state_->waiting.size() >= state_->most) {
    return false;
  }
  state_->waiting.push_back(std::move(job));
  state_->changed.notify_one();
  return true;
}

std::shared_ptr<AnswerJob> JobQueue::take(std::chrono::milliseconds within) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, within,
                           [&] { return state_->closed || !state_->waiting.empty(); });
  if (state_->waiting.empty()) {
    return nullptr;
  }
  std::shared_ptr<AnswerJob> next = std::move(state_->waiting.front());
  state_->waiting.pop_front();
  return next;
}

void JobQueue::close() {
  std::deque<std::shared_ptr<AnswerJob>> left;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    left.swap(state_->waiting);
  }
  state_->changed.notify_all();
  for (const std::shared_ptr<AnswerJob>& job : left) {
    job->refuse("the server stops");
  }
}

}  // namespace tessera::app
