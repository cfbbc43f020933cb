module;
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tessera/limits.hpp>
#include <thread>
#include <utility>
#include <vector>
module tessera.app.server;

import tessera.base;
import tessera.text;

namespace tessera::app {

AnswerJob::AnswerJob(std::vector<std::int64_t> prompt, text::GenerationOptions options,
                     std::chrono::seconds most_seconds, AnswerReceiver receiver, AdapterUse adapter)
    : prompt_(std::move(prompt)),
      options_(std::move(options)),
      most_seconds_(most_seconds),
      receiver_(std::move(receiver)),
      adapter_(std::move(adapter)) {}

ModelJob::~ModelJob() = default;

void ModelJob::refuse() {
  if (!cancelled_) {
    fail_with(Error("the server stops", ErrorKind::interrupted));
  }
}

void ModelJob::begin(const std::shared_ptr<ModelJob>& job, const text::TextModel& model,
                     text::Engine& engine, const std::function<bool()>& wanted) {
  if (job->cancelled_) {
    return;
  }
  try {
    if (auto request = job->request(job, model, wanted)) {
      engine.submit(std::move(*request));
    }
  } catch (const std::exception& error) {
    job->fail_with(error);
  }
}

std::optional<text::EngineRequest> AnswerJob::request(const std::shared_ptr<ModelJob>& self,
                                                      const text::TextModel& model,
                                                      const std::function<bool()>& wanted) {
  const auto end_at = std::chrono::steady_clock::now() + most_seconds_;
  const auto goes_on = [self, wanted, end_at] {
    return wanted() && !self->cancelled() && std::chrono::steady_clock::now() < end_at;
  };
  const auto receive = [this, self, goes_on](std::size_t, const text::TextPart& part) {
    if (!self->cancelled()) {
      receiver_.part(part);
    }
    return goes_on();
  };
  const auto continuation =
      std::make_shared<text::Continuation>(model, prompt_, 0, options_, receive);
  if (continuation->ended()) {
    end(*continuation, wanted(), nullptr);
    return std::nullopt;
  }
  return text::EngineRequest{
      .prompt = prompt_,
      .tokens = options_.tokens,
      .scored = continuation->scored_prompt(),
      .adapter = adapter_ ? adapter_->number : 0,
      .next = [continuation](const auto& logits) { return continuation->next(logits); },
      .wanted = goes_on,
      .ended = [this, self, continuation,
                wanted](const std::exception* error) { end(*continuation, wanted(), error); }};
}

void AnswerJob::end(text::Continuation& continuation, bool wanted, const std::exception* error) {
  if (!wanted) {
    refuse();  // ranks end by an error, too
    return;
  }
  if (cancelled()) {
    return;
  }
  if (error != nullptr) {
    receiver_.failed(*error);
    return;
  }
  continuation.end(text::TextEnd::cancelled);  // unless it has ended
  receiver_.end(continuation.take());
}

struct JobQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<ModelJob>> waiting;
  std::size_t most;
  bool closed = false;
};

JobQueue::JobQueue(std::size_t most) : state_(std::make_unique<State>()) { state_->most = most; }
JobQueue::~JobQueue() = default;

bool JobQueue::add(const std::vector<std::shared_ptr<ModelJob>>& jobs) {
  const std::lock_guard lock(state_->mutex);
  // A request of many texts is one that waits.
  if (state_->closed || state_->waiting.size() >= state_->most) {
    return false;
  }
  state_->waiting.insert(state_->waiting.end(), jobs.begin(), jobs.end());
  state_->changed.notify_one();
  return true;
}

void JobQueue::leave(const std::shared_ptr<ModelJob>& job) {
  job->cancel();
  const std::lock_guard lock(state_->mutex);
  std::erase(state_->waiting, job);
}

std::shared_ptr<ModelJob> JobQueue::take(std::chrono::milliseconds within) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, within,
                           [&] { return state_->closed || !state_->waiting.empty(); });
  if (state_->waiting.empty()) {
    return nullptr;
  }
  std::shared_ptr<ModelJob> next = std::move(state_->waiting.front());
  state_->waiting.pop_front();
  return next;
}

void JobQueue::close() {
  std::deque<std::shared_ptr<ModelJob>> left;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    left.swap(state_->waiting);
  }
  state_->changed.notify_all();
  for (const std::shared_ptr<ModelJob>& job : left) {
    job->refuse();
  }
}

struct TaskThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  std::size_t most;
  bool ends = false;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return ends || !waiting.empty(); });
      if (ends) {
        return;
      }
      {
        const std::function<void()> task = std::move(waiting.front());
        waiting.pop_front();
        lock.unlock();
        task();
      }
      lock.lock();
    }
  }
};

TaskThread::TaskThread(std::size_t most) : state_(std::make_unique<State>()) {
  state_->most = most;
  state_->thread = start_thread("the server", [this] { state_->run(); });
}

TaskThread::~TaskThread() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

bool TaskThread::add(std::function<void()> task) {
  const std::lock_guard lock(state_->mutex);
  if (state_->waiting.size() >= state_->most) {
    return false;
  }
  state_->waiting.push_back(std::move(task));
  state_->changed.notify_one();
  return true;
}

struct LastMoment::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool gone = false;
  std::thread thread;

  bool gone_within(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [&] { return gone; });
  }
};

LastMoment::LastMoment(std::chrono::milliseconds within, std::function<bool()> asked,
                       std::function<void()> force)
    : state_(std::make_unique<State>()) {
  state_->thread = start_thread("the server",
                                [this, within, asked = std::move(asked), force = std::move(force)] {
                                  constexpr std::chrono::milliseconds between_looks{50};
                                  while (!asked()) {
                                    if (state_->gone_within(between_looks)) {
                                      return;
                                    }
                                  }
                                  if (!state_->gone_within(within)) {
                                    force();
                                  }
                                });
}

LastMoment::~LastMoment() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->gone = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

}  // namespace tessera::app
