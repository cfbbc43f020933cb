// Answers that are made one after the other, and what ends them.
#include <atomic>
#include <chrono>
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
  tessera::text::Decoding decoding{model.ranks(), model.shape().vocab};
  tessera::text::GenerationOptions options;

  Model() {
    options.tokens = 30;
    options.sampling = {.temperature = 5};
  }
  std::vector<std::int64_t> prompt(const std::string& text) const {
    return tessera::text::prompt_tokens(model, text);
  }
};

constexpr std::chrono::seconds minute{60};
const auto always = [] { return true; };

}  // namespace

TEST_CASE("an answer ends at its time, and its parts are its text") {
  Model model;
  const auto tokens_with = [&](int seconds) {
    Received got;
    AnswerJob job(model.prompt("Question:"), model.options, std::chrono::seconds(seconds),
                  got.receiver());
    job.run(model.model, model.decoding, always);
    REQUIRE(got.whole);
    CHECK(got.parts == got.whole->text);
    return std::pair(got.whole->end, got.whole->tokens.size());
  };
  CHECK(tokens_with(60).second > 1);
  CHECK(tokens_with(0) == std::pair(tessera::text::TextEnd::cancelled, std::size_t{1}));
}

TEST_CASE("an answer that a server's end cuts is no answer, and an error of the model is one") {
  Model model;
  Received cut;
  AnswerJob job(model.prompt("Question:"), model.options, minute, cut.receiver());
  job.run(model.model, model.decoding, [] { return false; });
  CHECK(!cut.whole);
  CHECK(cut.problem == "the server stops");
  Received wrong;
  AnswerJob unknown({1 << 20}, model.options, minute, wrong.receiver());
  unknown.run(model.model, model.decoding, always);
  CHECK(!wrong.whole);
  CHECK(!wrong.problem.empty());
}

TEST_CASE("nothing more is made for a client that has gone") {
  Model model;
  Received got;
  AnswerJob before(model.prompt("Question:"), model.options, minute, got.receiver());
  before.cancel();
  int asked = 0;
  const auto count = [&] { return ++asked > 0; };
  before.run(model.model, model.decoding, count);
  CHECK(asked == 0);
  AnswerReceiver leaving = got.receiver();
  AnswerJob* running = nullptr;
  leaving.part = [&](const tessera::text::TextPart& part) {
    got.parts += part.text;
    running->cancel();
  };
  model.options.sampling.temperature = 0;
  AnswerJob within(model.prompt("Question: colour of grass\nAnswer:"), model.options, minute,
                   leaving);
  running = &within;
  within.run(model.model, model.decoding, count);
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
  AnswerJob job(prompt, model.options, minute, got.receiver());
  int asked = 0;
  job.run(model.model, model.decoding, [&] {
    job.cancel();
    ++asked;
    return true;
  });
  CHECK(asked == 2);  // between two passes, and at the end
  CHECK(!got.whole);
  // What was read is not read again, and gives the same answer.
  Received after;
  AnswerJob again(prompt, model.options, minute, after.receiver());
  asked = 0;
  again.run(model.model, model.decoding, [&] { return ++asked > 0; });
  REQUIRE(after.whole);
  tessera::text::Decoding fresh(model.model.ranks(), model.model.shape().vocab);
  Received whole;
  AnswerJob alone(prompt, model.options, minute, whole.receiver());
  int asked_alone = 0;
  alone.run(model.model, fresh, [&] { return ++asked_alone > 0; });
  REQUIRE(whole.whole);
  CHECK(after.whole->tokens == whole.whole->tokens);
  CHECK(asked_alone == asked + 1);
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
