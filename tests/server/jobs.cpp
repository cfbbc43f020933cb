// Answers that are made at the same time, and what ends them.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "trained.hpp"

import tessera.base;
import tessera.text;
import tessera.app.server;

using generation_test::trained;
using tessera::app::AnswerJob;
using tessera::app::AnswerReceiver;
using tessera::text::GeneratedText;
using tessera::text::TextEnd;

namespace {

/// What an answer's receiver has got.
struct Received {
  std::string parts;
  std::optional<tessera::text::GeneratedText> whole;
  std::string problem;

  AnswerReceiver receiver() {
    return {.part = [this](const tessera::text::TextPart& part) { parts += part.text; },
            .end = [this](const tessera::text::GeneratedText& text) { whole = text; },
            .failed = [this](const std::exception& error) { problem = error.what(); }};
  }
};

struct Model {
  tessera::text::TextModel model{trained().model};
  tessera::text::Engine engine{model.ranks(), model.shape().vocab};
  tessera::text::GenerationOptions options;

  Model() {
    options.tokens = 30;
    options.sampling = {.temperature = 5};
  }
  std::vector<std::int64_t> prompt(const std::string& text) const {
    return tessera::text::prompt_tokens(model, text);
  }
  /// Alone, until it ends.
  void run(const std::shared_ptr<AnswerJob>& job, const std::function<bool()>& wanted) {
    AnswerJob::begin(job, model, engine, wanted);
    while (engine.step()) {
    }
  }
};

std::shared_ptr<AnswerJob> job_of(std::vector<std::int64_t> prompt,
                                  const tessera::text::GenerationOptions& options,
                                  std::chrono::seconds seconds, AnswerReceiver receiver) {
  return std::make_shared<AnswerJob>(std::move(prompt), options, seconds, std::move(receiver));
}

constexpr std::chrono::seconds minute{60};
const auto always = [] { return true; };

}  // namespace

TEST_CASE("an answer ends at its time, and its parts are its text") {
  Model model;
  const auto tokens_with = [&](int seconds) {
    Received got;
    model.run(job_of(model.prompt("Question:"), model.options, std::chrono::seconds(seconds),
                     got.receiver()),
              always);
    REQUIRE(got.whole);
    CHECK(got.parts == got.whole->text);
    return std::pair(got.whole->end, got.whole->tokens.size());
  };
  CHECK(tokens_with(60).second > 1);
  CHECK(tokens_with(0) == std::pair(tessera::text::TextEnd::cancelled, std::size_t{0}));
}

TEST_CASE("an answer that a server's end cuts is no answer, and an error of the model is one") {
  Model model;
  Received cut;
  model.run(job_of(model.prompt("Question:"), model.options, minute, cut.receiver()),
            [] { return false; });
  CHECK(!cut.whole);
  CHECK(cut.problem == "the server stops");
  Received wrong;
  model.run(job_of({1 << 20}, model.options, minute, wrong.receiver()), always);
  CHECK(!wrong.whole);
  CHECK(!wrong.problem.empty());
}

TEST_CASE("nothing more is made for a client that has gone") {
  Model model;
  Received got;
  const auto before = job_of(model.prompt("Question:"), model.options, minute, got.receiver());
  before->cancel();
  int asked = 0;
  const auto count = [&] { return ++asked > 0; };
  model.run(before, count);
  CHECK(asked == 0);
  AnswerReceiver leaving = got.receiver();
  AnswerJob* running = nullptr;
  leaving.part = [&](const tessera::text::TextPart& part) {
    got.parts += part.text;
    running->cancel();
  };
  model.options.sampling.temperature = 0;
  const auto within =
      job_of(model.prompt("Question: colour of grass\nAnswer:"), model.options, minute, leaving);
  running = within.get();
  model.run(within, count);
  CHECK(got.parts.size() < std::string(" green").size());
  CHECK(!got.whole);
  CHECK(got.problem.empty());
}

TEST_CASE("a long prompt is read in passes, and its client may go between them") {
  Model model;
  model.options.sampling.temperature = 0;
  model.options.tokens = 4;
  const std::vector<std::int64_t> prompt(1300, 7);  // three passes
  Received got;
  const auto leaving = job_of(prompt, model.options, minute, got.receiver());
  int asked = 0;
  model.run(leaving, [&] {
    if (++asked == 2) {
      leaving->cancel();  // after the first pass
    }
    return true;
  });
  CHECK(!got.whole);
  CHECK(got.problem.empty());
  const std::int64_t read = model.engine.counts().read;
  CHECK(read >= 256);
  CHECK(read < 1300);
  CHECK(model.engine.counts().pages == 0);
  // What was read is not read again, and gives the same answer.
  Received after;
  model.run(job_of(prompt, model.options, minute, after.receiver()), always);
  REQUIRE(after.whole);
  CHECK(model.engine.counts().kept >= read - 16);
  Model fresh;
  Received whole;
  fresh.run(job_of(prompt, model.options, minute, whole.receiver()), always);
  REQUIRE(whole.whole);
  CHECK(after.whole->tokens == whole.whole->tokens);
}

TEST_CASE("answers that are made together are those that are made alone") {
  Model model;
  model.options.sampling.temperature = 1;
  const std::vector<std::string> prompts = {"Question: colour of grass\nAnswer:", "Question:", "a",
                                            "Question: colour of night\nAnswer:"};
  std::vector<Received> together(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    AnswerJob::begin(
        job_of(model.prompt(prompts[i]), model.options, minute, together[i].receiver()),
        model.model, model.engine, always);
  }
  while (model.engine.step()) {
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Model fresh;
    Received alone;
    fresh.run(job_of(fresh.prompt(prompts[i]), model.options, minute, alone.receiver()), always);
    REQUIRE(alone.whole);
    REQUIRE(together[i].whole);
    CHECK(together[i].whole->tokens == alone.whole->tokens);
    CHECK(together[i].parts == alone.parts);
  }
}

TEST_CASE("few jobs may wait, and one whose client leaves makes room at once") {
  tessera::app::JobQueue queue(2);
  Received got;
  const auto job = [&] {
    return std::make_shared<AnswerJob>(std::vector<std::int64_t>{1},
                                       tessera::text::GenerationOptions{}, minute, got.receiver());
  };
  const auto first = job();
  const auto second = job();
  const auto third = job();
  CHECK(queue.add(first));
  CHECK(queue.add(second));
  CHECK(!queue.add(job()));
  queue.leave(first);
  CHECK(queue.add(third));
  CHECK(queue.take(std::chrono::milliseconds(0)) == second);
  CHECK(got.problem.empty());
  queue.close();
  CHECK(got.problem == "the server stops");
  CHECK(queue.take(std::chrono::milliseconds(0)) == nullptr);
  CHECK(!queue.add(job()));
}

TEST_CASE("tasks wait in a thread of their own, and a server's end is forced") {
  std::atomic<bool> goes_on = false;
  std::atomic<int> done = 0;
  {
    tessera::app::TaskThread tasks(1);
    const auto task = [&] {
      while (!goes_on) {
        std::this_thread::yield();
      }
      ++done;
    };
    CHECK(tasks.add(task));
    int more = 0;
    while (tasks.add(task)) {  // the first one may not have begun
      ++more;
    }
    CHECK(more <= 2);
    goes_on = true;
    while (done == 0) {
      std::this_thread::yield();
    }
  }
  std::atomic<bool> forced = false;
  const auto force = [&] { forced = true; };
  {
    const tessera::app::LastMoment in_time(minute, always, force);
  }
  {
    const tessera::app::LastMoment never(std::chrono::milliseconds(0), [] { return false; }, force);
  }
  CHECK(!forced);
  const tessera::app::LastMoment late(std::chrono::milliseconds(1), always, force);
  while (!forced) {
    std::this_thread::yield();
  }
}
