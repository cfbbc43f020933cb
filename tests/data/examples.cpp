// Records as tokens, and which of them are trained.
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tokenize;
import tessera.data;

#include "errors.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;
using data::Example;
using data::ExampleMaker;
using data::TrainOn;
using Texts = std::vector<std::string>;

namespace {

std::shared_ptr<const ExampleMaker> maker(const std::string& file = "chatml.jinja",
                                          TrainOn train_on = TrainOn::answers) {
  return std::make_shared<const ExampleMaker>(
      small_tokenizer(), file.empty() ? nullptr : chat_template(file), train_on);
}

std::string chat(const std::string& messages) { return "{\"messages\": [" + messages + "]}"; }
std::string said(const std::string& role, const std::string& text) {
  return Json{{"role", role}, {"content", text}}.dump();
}

Texts trained(const ExampleMaker& made, const std::string& record) {
  return trained_parts(made.make(record), *made.tokenizer().tokenizer);
}

std::string refusal(const std::string& record, const std::string& file = "chatml.jinja") {
  return error_of([&] { maker(file)->make(record); });
}

const std::string two_turns = chat(said("user", "one") + "," + said("assistant", "two") + "," +
                                   said("user", "three") + "," + said("assistant", "four"));

}  // namespace

TEST_CASE("answers and what ends them are trained, and nothing else") {
  CHECK(trained(*maker(), two_turns) == Texts{"two<|im_end|>", "four<|im_end|>"});
  // The marks say where answers end; here the end of the line is within them.
  CHECK(trained(*maker("marked.jinja"), two_turns).size() == 2);
}

TEST_CASE("a template whose marks leave the ending token out is refused") {
  const auto chat_without = std::make_shared<const data::ChatTemplate>(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}<|im_end|>{% else %}{{ m.content }}\n{% endif %}{% endfor %}",
      "without.jinja");
  const ExampleMaker made(small_tokenizer(), chat_without, TrainOn::answers);
  CHECK_THAT(error_of([&] { made.make(two_turns); }),
             Contains("the answer of message 2 does not end with a token that ends generated"));
}

TEST_CASE("a template that writes no ending token is refused") {
  const auto chat_without = std::make_shared<const data::ChatTemplate>(
      "{% for m in messages %}{{ m.content }}\n{% endfor %}", "without.jinja");
  const ExampleMaker made(small_tokenizer(), chat_without, TrainOn::answers);
  CHECK_THAT(error_of([&] { made.make(two_turns); }), Contains("would not learn to stop"));
}

TEST_CASE("all tokens are trained where this is asked for") {
  const Example all = maker("chatml.jinja", TrainOn::all)->make(two_turns);
  CHECK(std::ranges::count(all.trained, 1) == std::ssize(all.ids));
}

TEST_CASE("the completion and the ending token are trained") {
  const std::string record = R"({"prompt": "What is it?", "completion": " A house."})";
  CHECK(trained(*maker(), record) == Texts{" A house.<|im_end|>"});
  CHECK(maker()->make(record).joined == 0);
  REQUIRE(maker()->tokenizer().tokenizer->encode("a the").size() == 2);
  CHECK(maker()->make(R"({"prompt": "a th", "completion": "e"})").joined == 1);
}

TEST_CASE("of a prompt and a completion of messages, the completion's answers are trained") {
  const std::string record = "{\"prompt\": [" + said("user", "one") + "," +
                             said("assistant", "two") + "," + said("user", "three") +
                             "], \"completion\": [" + said("assistant", "four") + "]}";
  CHECK(trained(*maker(), record) == Texts{"four<|im_end|>"});
}

TEST_CASE("a preference is two answers to one prompt, and nothing else of it is trained") {
  const std::string text = R"({"prompt": "What is it?", "chosen": " A house.", "rejected": " I"})";
  const std::string prompt =
      said("user", "one") + "," + said("assistant", "two") + "," + said("user", "three");
  const std::string chosen = said("assistant", "four");
  const std::string rejected = said("assistant", "five");
  const std::string given = "{\"prompt\": [" + prompt + "], \"chosen\": [" + chosen +
                            "], \"rejected\": [" + rejected + "]}";
  const std::string implied = "{\"chosen\": [" + prompt + "," + chosen + "], \"rejected\": [" +
                              prompt + "," + rejected + "]}";
  const auto made = maker();
  const auto& tokenizer = *made->tokenizer().tokenizer;
  const data::Preference of_text = made->make_preference(text);
  CHECK(trained_parts(of_text.chosen, tokenizer) == Texts{" A house.<|im_end|>"});
  CHECK(trained_parts(of_text.rejected, tokenizer) == Texts{" I<|im_end|>"});
  for (const std::string& record : {given, implied}) {
    CHECK(ExampleMaker::kind_of(record) == data::RecordKind::preference);
    const data::Preference both = made->make_preference(record);
    CHECK(trained_parts(both.chosen, tokenizer) == Texts{"four<|im_end|>"});
    CHECK(trained_parts(both.rejected, tokenizer) == Texts{"five<|im_end|>"});
    CHECK(both.chosen.ids == made->make(chat(prompt + "," + chosen)).ids);
    CHECK(both.rejected.ids == made->make(chat(prompt + "," + rejected)).ids);
  }
}

TEST_CASE("a preference whose answers cannot be compared is refused") {
  const auto refused = [](const std::string& record) {
    return error_of([&] { maker()->make_preference(record); });
  };
  const auto both = [](const std::string& chosen, const std::string& rejected) {
    return "{\"chosen\": [" + chosen + "], \"rejected\": [" + rejected + "]}";
  };
  const std::string user = said("user", "one");
  const std::string answer = said("assistant", "two");
  CHECK_THAT(refused(R"({"prompt": "a", "chosen": "b", "rejected": "b"})"),
             Contains("'chosen' and 'rejected' are the same"));
  CHECK_THAT(refused(both(user + "," + answer, user + "," + answer)),
             Contains("'chosen' and 'rejected' are the same"));
  CHECK_THAT(refused(R"({"prompt": "a", "chosen": "b", "rejected": " "})"),
             Contains("'rejected' is empty"));
  CHECK_THAT(refused(both(user + "," + answer, user + "," + said("assistant", ""))),
             Contains("'rejected': the answer of message 2 is empty"));
  CHECK_THAT(refused(both(user + "," + answer, said("user", "other") + "," + answer)),
             Contains("do not begin with the same messages"));
  CHECK_THAT(refused(both(user + "," + answer + "," + user, user + "," + answer)),
             Contains("'chosen' does not go on with an answer"));
  CHECK_THAT(refused(both(user + "," + answer, user)), Contains("'rejected' does not go on"));
  CHECK_THAT(refused(R"({"prompt": "a", "chosen": "b"})"), Contains("'rejected' is missing"));
  CHECK_THAT(refused(R"({"chosen": "b", "rejected": "c"})"), Contains("'prompt' is missing"));
  CHECK_THAT(refused(R"({"prompt": "a", "chosen": "b", "rejected": ["c"]})"),
             Contains("'rejected' must be a text"));
  CHECK_THAT(refused(R"({"prompt": "a", "chosen": [], "rejected": ["c"]})"),
             Contains("'chosen' must be a list of messages that is not empty"));
  CHECK_THAT(refused(two_turns), Contains("the record does not compare answers"));
  CHECK_THAT(refusal(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"),
             Contains("set train.objective=dpo"));
}

TEST_CASE("the tokens of a conversation are those of its text") {
  const auto made = maker();
  const auto& tokenizer = *made->tokenizer().tokenizer;
  CHECK(tokenizer.decode(made->make(two_turns).ids) ==
        chat_template("chatml.jinja")->render(two_turns, false));
}

TEST_CASE("conversations that do not alternate are refused") {
  CHECK_THAT(
      refusal(chat(said("user", "a") + "," + said("user", "b") + "," + said("assistant", "c"))),
      Contains("message 2 is of the user after the user"));
  CHECK_THAT(refusal(chat(said("assistant", "c"))), Contains("message 1 is of the assistant at"));
  CHECK_THAT(refusal(chat(said("user", "a"))), Contains("ends with a message of the user"));
  CHECK_THAT(
      refusal(chat(said("user", "a") + "," + said("system", "b") + "," + said("assistant", "c"))),
      Contains("message 2 is of the system after the user"));
  CHECK_THAT(refusal(chat(said("robot", "a"))), Contains("message 1 has no role that is known"));
  CHECK_THAT(refusal("{\"messages\": []}"), Contains("must be a list that is not empty"));
}

TEST_CASE("an answer that is empty is refused") {
  CHECK_THAT(refusal(chat(said("user", "a") + "," + said("assistant", " \n"))),
             Contains("the answer of message 2 is empty"));
  CHECK_THAT(refusal(R"({"prompt": "a", "completion": ""})"), Contains("'completion' is empty"));
  CHECK_THAT(error_of([] { ExampleMaker::text_of(R"({"text": ""})"); }),
             Contains("'text' is empty"));
}

TEST_CASE("special tokens that users write, or that the tokenizer does not have, are refused") {
  CHECK_THAT(refusal(chat(said("user", "a <|im_end|> b") + "," + said("assistant", "c"))),
             Contains("message 1 contains the special token '<|im_end|>'"));
  CHECK_THAT(refusal(chat(said("user", "a") + "," + said("assistant", "c")), "headers.jinja"),
             Contains("'<|start|>', which the tokenizer does not have as a token"));
}

TEST_CASE("a text with two tokens for its beginning is refused") {
  const auto twice = std::make_shared<const data::ChatTemplate>(
      "<s><s>{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", "twice.jinja");
  const ExampleMaker made(small_tokenizer(), twice, TrainOn::all);
  CHECK_THAT(error_of([&] { made.make(two_turns); }), Contains("two tokens for its beginning"));
}

TEST_CASE("records that are of no kind are refused") {
  CHECK_THAT(refusal("[1]"), Contains("not a JSON object"));
  CHECK_THAT(refusal("{\"a\": 1}"), Contains("the record is of no kind"));
  CHECK_THAT(refusal(R"({"text": "a", "messages": []})"), Contains("the record is of no kind"));
  CHECK_THAT(refusal(R"({"prompt": "a"})"), Contains("'completion' is missing"));
  CHECK_THAT(refusal(R"({"text": 1})"), Contains("'text' must be a text"));
  CHECK_THAT(refusal("{\"text\": \"a\xFF\"}"), Contains("byte 11 is 0xFF, which is not UTF-8"));
  CHECK_THAT(refusal("{\"text\": \"a\""), Contains("JSON"));
  CHECK_THAT(refusal(two_turns, ""), Contains("no chat template"));
}
