// Records as tokens, and which of them are trained.
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tokenize;
import tessera.data;

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
  CHECK(maker()->make(R"({"prompt": "a th", "completion": "e I"})").joined == 1);
}

TEST_CASE("a completion of which only the end would be trained is refused") {
  CHECK_THAT(refusal(R"({"prompt": "a th", "completion": "e"})"),
             Contains("of 'completion' only the end would be trained: its first token begins in "
                      "the prompt; end the prompt before the blank"));
  CHECK_THAT(refusal(R"({"prompt": "a", "completion": "<|im_end|>"})"),
             Contains("of 'completion' only the end would be trained"));
  CHECK_THAT(error_of([] {
               maker()->make_preference(R"({"prompt": "a th", "chosen": "e", "rejected": "e I"})");
             }),
             Contains("of 'chosen' only the end would be trained"));
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
  CHECK_THAT(refusal("{\"messages\": []}"),
             Contains("'messages' must be a list of messages that is not empty"));
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

TEST_CASE("what a record itself writes between bars is data") {
  const Texts texts = {"expr = term <|> factor", "f<|g|>h", "What is <|fim|> in it?", "a <|b|> c"};
  for (const std::string& text : texts) {
    const std::string record = chat(said("user", text) + "," + said("assistant", text));
    CHECK(trained(*maker(), record) == Texts{text + "<|im_end|>"});
  }
  // Special tokens of this tokenizer are refused wherever a record has them.
  const std::string call =
      R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": ["<|im_end|>"]}}}]})";
  CHECK_THAT(refusal(chat(said("user", "a") + "," + call)),
             Contains("message 2 contains the special token '<|im_end|>'"));
  CHECK_THAT(refusal("{\"tools\": [{\"name\": \"<|im_start|>\"}], " +
                     chat(said("user", "a") + "," + said("assistant", "b")).substr(1)),
             Contains("'tools' contains the special token '<|im_start|>'"));
}

TEST_CASE("a text with two tokens for its beginning is refused") {
  const auto twice = std::make_shared<const data::ChatTemplate>(
      "<s><s>{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", "twice.jinja");
  const ExampleMaker made(small_tokenizer(), twice, TrainOn::all);
  CHECK_THAT(error_of([&] { made.make(two_turns); }), Contains("two tokens for its beginning"));
}

namespace {

/// Of messages that another program has marked: what is trained, or why it is refused.
Texts trained_with(const std::string& mark) {
  const std::string bad = R"({"role": "assistant", "content": "bad", )" + mark + "}";
  return trained(*maker(), chat(said("user", "a") + "," + bad + "," + said("user", "b") + "," +
                                said("assistant", "good")));
}

/// With a template of its own.
ExampleMaker made_by(const std::string& text, TrainOn train_on = TrainOn::answers,
                     data::ExampleOptions options = {}) {
  return ExampleMaker(small_tokenizer(),
                      std::make_shared<const data::ChatTemplate>(text, "own.jinja"), train_on,
                      std::move(options));
}

const std::string plain_template =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const std::string call_message =
    R"({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": )"
    R"({"name": "weather", "arguments": "{\"city\": \"Old \\\"Town\\\"\"}"}}]})";

}  // namespace

TEST_CASE("answers that a record marks as not to be learned are not trained") {
  for (const char* const mark :
       {R"("weight": 0)", R"("weight": 0.0)", R"("train": false)", R"("training": false)"}) {
    CHECK(trained_with(mark) == Texts{"good<|im_end|>"});
  }
  for (const char* const mark : {R"("weight": 1)", R"("train": true)", R"("train": null)"}) {
    CHECK(trained_with(mark) == Texts{"bad<|im_end|>", "good<|im_end|>"});
  }
  for (const char* const mark :
       {R"("weight": 0.5)", R"("train": "no")", R"("mask": true)", R"("loss": false)",
        R"("train_detail": [])", R"("weight": 1, "train": false)"}) {
    CHECK_THAT(error_of([&] { trained_with(mark); }), Contains("of message 2 is not understood"));
  }
  const std::string question = R"({"role": "user", "content": "a", "train": true})";
  CHECK_THAT(refusal(chat(question + "," + said("assistant", "b"))),
             Contains("message 1 of the user is marked to be learned"));
  const std::string marked = R"({"role": "assistant", "content": "b", "weight": 0})";
  CHECK_THAT(error_of([&] {
               maker("chatml.jinja", TrainOn::all)->make(chat(said("user", "a") + "," + marked));
             }),
             Contains("message 2 is marked as not to be learned"));
}

TEST_CASE("members of a record beside its messages change nothing, unless they are known") {
  const auto made = made_by(
      "{% if style is defined %}[{{ style }}]{% endif %}{% if tools %}{% for t in tools %}"
      "{{ t | tojson }}{% endfor %}{% endif %}" +
      plain_template);
  const auto text = [&](const ExampleMaker& maker, const std::string& member) {
    const Example example = maker.make(
        "{" + member + "," + chat(said("user", "a") + "," + said("assistant", "b")).substr(1));
    return maker.tokenizer().tokenizer->decode(example.ids);
  };
  const std::string plain = text(made, R"("id": 1)");
  for (const char* const member :
       {R"("style": "formal")", R"("add_generation_prompt": true)", R"("range": 3)",
        R"("bos_token": "x")", R"("images": [])", R"("tools": null)", R"("system": "")"}) {
    CHECK(text(made, member) == plain);
  }
  const std::string list = R"([{"name": "f", "id": 12345678901234567890123}])";
  CHECK(text(made, "\"tools\": " + list) == text(made, "\"tools\": " + Json(list).dump()));
  CHECK(text(made, "\"tools\": " + list) != plain);
  for (const char* const kwargs : {R"({"style": "formal"})", R"("{\"style\": \"formal\"}")"}) {
    CHECK(text(made, std::string("\"chat_template_kwargs\": ") + kwargs) == "[formal]" + plain);
  }
  const auto named = made_by("{% if style is defined %}[{{ style }}]{% endif %}" + plain_template,
                             TrainOn::answers, {.template_members = {"style"}});
  CHECK(text(named, R"("style": "formal")") == "[formal]" + plain);
  const auto refused = [&](const char* member) { return error_of([&] { text(made, member); }); };
  CHECK_THAT(refused(R"("functions": [{"name": "f"}])"),
             Contains("'functions' beside the messages"));
  CHECK_THAT(refused(R"("system": "Be kind.")"), Contains("write it as the first message"));
  CHECK_THAT(refused(R"("weight": 0.5)"), Contains("'weight' beside the messages"));
  CHECK_THAT(refused(R"("tools": "[1")"), Contains("'tools' is a text that is not JSON"));
  CHECK_THAT(refused(R"("tools": "[], \"messages\": []")"), Contains("'tools' must be a list"));
  CHECK_THAT(refused(R"("chat_template_kwargs": {"messages": []})"),
             Contains("cannot set 'messages'"));
}

TEST_CASE("members that nothing reads are named") {
  const std::string record =
      R"({"id": 1, "messages": [{"role": "user", "content": "a", "time": 3}, {"role": "assistant", "content": "b"}]})";
  CHECK(maker()->make(record).unread == std::set<std::string>{"id", "messages.time"});
}

TEST_CASE(
    "an answer that goes on after a token that ends texts is refused, as its rest is untrained") {
  // Thoughts and the answer are messages of their own here, and <|im_end|> ends both.
  const auto made = made_by(
      "{% for m in messages %}{% if m.reasoning_content %}<|im_start|>thoughts\n"
      "{{ m.reasoning_content }}<|im_end|>{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
      "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}");
  const auto record = [](const char* more) {
    return R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b",)"
           R"( "reasoning_content": "c")" +
           std::string(more) + "}]}";
  };
  CHECK_THAT(error_of([&] { made.make(record("")); }),
             Contains("of message 2, 'b' would not be trained: it is after the first token that "
                      "ends generated texts"));
  const auto all = made_by(
      "{% for m in messages %}{{ m.content }}<|im_end|>{{ m.reasoning_content }}{% endfor %}",
      TrainOn::all);
  CHECK(all.make(record("")).ids.size() > 2);
}

TEST_CASE("a text is the one part of a list where the template takes lists alone") {
  // As those of SmolVLM and Idefics 3.
  const auto made = made_by(
      "{% for m in messages %}<|im_start|>{{ m.role }}{{ ':' if m.content[0].type == 'image' else "
      "': ' }}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
      "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}");
  const auto& tokenizer = *made.tokenizer().tokenizer;
  const Example example = made.make(
      chat(said("system", "be") + "," + said("user", "one") + "," + said("assistant", "two")));
  CHECK(tokenizer.decode(example.ids) ==
        "<|im_start|>system: be<|im_end|>\n<|im_start|>user: one<|im_end|>\n"
        "<|im_start|>assistant: two<|im_end|>\n");
  CHECK(trained_parts(example, tokenizer) == Texts{" two<|im_end|>"});
}

TEST_CASE("answers that differ in a number of more than 64 bits are two answers") {
  const auto made = made_by(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for c in "
      "m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
      "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const auto& tokenizer = *made.tokenizer().tokenizer;
  const auto call = [](const std::string& number) {
    return R"({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", )"
           R"("arguments": {"id": )" +
           number + "}}}]}";
  };
  const auto answer = [](const std::string& number) {
    return "f{\"id\": " + number + "}<|im_end|>";
  };
  const std::string one = "12345678901234567890123";
  const std::string other = "12345678901234567890124";
  const std::string user = said("user", "one");
  const std::string more = "," + said("tool", "three") + "," + said("assistant", "four");
  for (const std::string& record :
       {"{\"prompt\": [" + user + "], \"chosen\": [" + call(one) + more + "], \"rejected\": [" +
            call(other) + more + "]}",
        "{\"chosen\": [" + user + "," + call(one) + more + "], \"rejected\": [" + user + "," +
            call(other) + more + "]}"}) {
    const data::Preference both = made.make_preference(record);
    CHECK(trained_parts(both.chosen, tokenizer) == Texts{answer(one), "four<|im_end|>"});
    CHECK(trained_parts(both.rejected, tokenizer) == Texts{answer(other), "four<|im_end|>"});
  }
  const std::string same = "{\"chosen\": [" + user + "," + call(one) + "], \"rejected\": [" + user +
                           "," + call(" " + one) + "]}";
  CHECK_THAT(error_of([&] { made.make_preference(same); }), Contains("are the same"));
}

TEST_CASE("parts of a content are joined where the template takes texts") {
  const std::string parts =
      R"([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}])";
  const std::string record = R"({"messages": [{"role": "user", "content": )" + parts +
                             R"(}, {"role": "assistant", "content": )" + parts + "}]}";
  const std::string whole = chat(said("user", "one two") + "," + said("assistant", "one two"));
  const auto plain = made_by(plain_template);
  CHECK(plain.make(record).ids == plain.make(whole).ids);
  CHECK(trained(plain, record) == Texts{"one two<|im_end|>"});
  // A template that takes parts gets them; here it writes a line for each.
  const auto lines = made_by(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
      "{% else %}{% for p in m.content %}{{ p.text }}\n{% endfor %}{% endif %}<|im_end|>\n"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  CHECK(trained(lines, record) == Texts{"one \ntwo\n<|im_end|>"});
}

TEST_CASE("what a template does not write is an error, unless the run allows it") {
  const auto plain = made_by(plain_template);
  const auto dropped = [&](const std::string& messages) {
    return error_of([&] { plain.make(chat(messages)); });
  };
  const std::string question = said("user", "a question");
  const std::string answer = said("assistant", "an answer");
  const std::string thoughtful =
      R"({"role": "assistant", "content": "an answer", "reasoning_content": "some thoughts"})";
  CHECK_THAT(dropped(question + "," + call_message + "," + said("tool", "rain") + "," + answer),
             Contains("the template does not write the tool_calls of message 2: 'weather'"));
  CHECK_THAT(dropped(question + "," + thoughtful),
             Contains("does not write the reasoning of message 2: 'some thoughts'"));
  CHECK_THAT(error_of([&] {
               plain.make(R"({"tools": [{"type": "function", "function": {"name": "weather"}}], )" +
                          chat(question + "," + answer).substr(1));
             }),
             Contains("does not write the tools of the record: 'weather'"));
  const auto users = made_by(
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.content }}<|im_end|>"
      "{% endif %}{% endfor %}");
  CHECK_THAT(error_of([&] {
               users.make(chat(said("system", "be kind") + "," + question + "," + answer));
             }),
             Contains("does not write the system of message 1: 'be kind'"));
  const auto allowing = made_by(plain_template, TrainOn::answers, {.allow_dropped = {"reasoning"}});
  CHECK(allowing.make(chat(question + "," + thoughtful)).dropped ==
        std::map<std::string, std::int64_t>{{"reasoning", 1}});
  CHECK_THAT(error_of([&] { allowing.make(chat(question + "," + call_message)); }),
             Contains("the tool_calls"));
}

TEST_CASE("contents are found however a template writes them") {
  const std::string text = "  It's \"one\" <b> & \\ \n\n  two\ttabs \u00e9  ";
  const std::string record = chat(said("user", text) + "," + said("assistant", text));
  for (const char* const written :
       {"m.content", "m.content | trim", "m.content | tojson", "m.content.split() | join(' ')",
        "m.content.replace('\n', '\n    ')"}) {
    const auto made =
        made_by("{% for m in messages %}{{ " + std::string(written) + " }}<|im_end|>{% endfor %}");
    CHECK(trained(made, record).size() == 1);
  }
  const auto call = made_by(
      "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c | tojson }}"
      "{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}");
  CHECK(trained(call, chat(said("user", "a") + "," + call_message + "," + said("tool", "b") + "," +
                           said("assistant", "c")))
            .size() == 2);
  // Arguments say what is called, if not by which name: that is said and no error.
  const auto arguments = made_by(
      "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
      "{{ c.function.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}"
      "<|im_end|>{% endfor %}");
  CHECK(arguments
            .make(chat(said("user", "a") + "," + call_message + "," + said("tool", "b") + "," +
                       said("assistant", "c")))
            .unread == std::set<std::string>{"messages.tool_calls.function.name"});
}

TEST_CASE("thoughts within an answer that the template leaves out are reasoning") {
  const std::string answer = said("assistant", "<think>\nsome thoughts\n</think>\n\nan answer");
  const std::string text =
      "{% for m in messages %}{{ m.content.split('</think>')[-1] | trim }}<|im_end|>{% endfor %}";
  CHECK_THAT(error_of([&] { made_by(text).make(chat(said("user", "a") + "," + answer)); }),
             Contains("the reasoning of message 2: '\nsome thoughts\n'"));
  CHECK(made_by(plain_template).make(chat(said("user", "a") + "," + answer)).dropped.empty());
  const std::string empty = said("assistant", "<think>\n\n</think>\n\nan answer");
  CHECK(made_by(text).make(chat(said("user", "a") + "," + empty)).dropped.empty());
}

TEST_CASE("an answer of which only the end would be trained is refused") {
  const std::string record = chat(said("user", "same") + "," + said("assistant", "same"));
  const auto made = made_by(
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}{{ m.content }}"
      "{% generation %}<|im_end|>{% endgeneration %}{% endif %}{% endfor %}");
  CHECK_THAT(error_of([&] { made.make(record); }),
             Contains("does not write the content of message 2"));
  const auto blank = made_by(
      "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{% generation %}\n\n"
      "<|im_end|>{% endgeneration %}{% endif %}{% endfor %}",
      TrainOn::answers, {.allow_dropped = {"content"}});
  CHECK_THAT(error_of([&] { blank.make(record); }),
             Contains("of the answer of message 2 only the end would be trained"));
}

TEST_CASE("special tokens that texts write are read, letters, or refused") {
  const auto made = [](data::SpecialText special) {
    return ExampleMaker(small_tokenizer(), nullptr, TrainOn::answers, {.special = special});
  };
  const auto tokenizer = small_tokenizer();
  const auto end = *tokenizer.tokenizer->id("<|im_end|>");
  const std::string text = R"({"text": "one<|im_end|>two"})";
  const auto ends = [&](const std::string& record, data::SpecialText special) {
    return std::ranges::count(made(special).make(record).ids, end);
  };
  CHECK(ends(text, data::SpecialText::read) == 2);
  CHECK(ends(text, data::SpecialText::letters) == 1);
  CHECK_THAT(error_of([&] { ends(text, data::SpecialText::refuse); }),
             Contains("the text contains the special token '<|im_end|>'"));
  // A text that ends itself gets no second end.
  CHECK(ends(R"({"text": "one<|im_end|>"})", data::SpecialText::read) == 1);
  CHECK(ends(R"({"prompt": "one", "completion": " two<|im_end|>"})", data::SpecialText::read) == 1);
  CHECK(ends(R"({"text": "one<|im_end|>"})", data::SpecialText::letters) == 1);
  const data::TextEncoder texts(small_tokenizer());
  CHECK(texts.prompt("one<|im_end|>").back() == end);
  CHECK(texts.prompt("one").back() != end);
}

TEST_CASE("a text is not divided within a special token") {
  const data::TextEncoder texts(small_tokenizer());
  const std::string text = "aaaa<|im_end|>bbbb";
  for (std::size_t at = 1; at < text.size(); ++at) {
    CHECK(texts.cut_before_special(text, at) == (at > 4 && at < 14 ? 4 : at));
  }
}

TEST_CASE("data sets that have other members beside messages are read") {
  const std::string messages = said("user", "a question") + "," + said("assistant", "an answer");
  const auto with = [&](const std::string& prompt) {
    return "{\"prompt\": " + Json(prompt).dump() + ", \"prompt_id\": \"1\", \"messages\": [" +
           messages + "]}";
  };
  CHECK(maker()->make(with("a question")).ids == maker()->make(chat(messages)).ids);
  CHECK_THAT(refusal(with("something else")),
             Contains("'prompt' is a text that no message beside it contains"));
  const std::string chosen = "[" + messages + "]";
  const std::string rejected =
      "[" + said("user", "a question") + "," + said("assistant", "no") + "]";
  const std::string pairs = R"({"prompt": "a question", "score_chosen": 8.5, "messages": )" +
                            chosen + R"(, "chosen": )" + chosen + R"(, "rejected": )" + rejected +
                            "}";
  CHECK(ExampleMaker::kind_of(pairs) == data::RecordKind::conversation);
  CHECK(ExampleMaker::kind_of(pairs, true) == data::RecordKind::preference);
  CHECK(maker()->make(pairs).ids == maker()->make(chat(messages)).ids);
  CHECK(maker()->make_preference(pairs).chosen.ids == maker()->make(chat(messages)).ids);
}

TEST_CASE("tokens are trained as their labels say, without what the mask leaves out") {
  const auto of = [](const std::string& record, TrainOn train_on = TrainOn::answers) {
    const Example made = maker("", train_on)->make(record);
    std::vector<int> trained(made.trained.begin(), made.trained.end());
    return std::pair(std::vector<int>(made.ids.begin(), made.ids.end()), trained);
  };
  using Both = std::pair<std::vector<int>, std::vector<int>>;
  CHECK(of(R"({"input_ids": [5, 6, 7]})") == Both{{5, 6, 7}, {1, 1, 1}});
  const std::string labelled =
      R"("input_ids": [5, 6, 7, 0, 0], "labels": [-100, 6, 7, -100, -100])";
  CHECK(of("{" + labelled + "}") == Both{{5, 6, 7, 0, 0}, {0, 1, 1, 0, 0}});
  CHECK(of("{" + labelled + R"(, "attention_mask": [1, 1, 1, 0, 0]})") ==
        Both{{5, 6, 7}, {0, 1, 1}});
  CHECK(of("{" + labelled + R"(, "attention_mask": [1, 1, 1, 0, 0]})", TrainOn::all) ==
        Both{{5, 6, 7}, {1, 1, 1}});
  CHECK(of(R"({"input_ids": [0, 0, 5, 6], "attention_mask": [0, 0, 1, 1]})") ==
        Both{{5, 6}, {1, 1}});
  CHECK(maker()->make(R"({"input_ids": [5, 6], "token_type_ids": [0, 0]})").unread ==
        std::set<std::string>{"token_type_ids"});

  const auto refused = [](const std::string& members, const std::string& words) {
    INFO(members);
    CHECK_THAT(refusal("{" + members + "}"), Contains(words));
  };
  const std::string ids = R"("input_ids": [5, 6, 7], )";
  refused(R"("input_ids": [])", "'input_ids' is empty");
  refused(R"("input_ids": 5)", "'input_ids' is not a list of whole numbers");
  refused(R"("input_ids": [5, 6.5])", "'input_ids[1]' is not a whole number");
  refused(R"("input_ids": [5, "6"])", "'input_ids[1]' is not a whole number");
  refused(R"("input_ids": [5, -1])", "'input_ids[1]' is no token of the tokenizer (expected 0 to ");
  refused(R"("input_ids": [5, 18446744073709551615])", "'input_ids[1]' is too large");
  refused(ids + R"("labels": [5, 6, 18446744073709551516])", "'labels[2]' is too large");
  refused(R"("input_ids": [5, 100000])", "got 100000");
  refused(ids + R"("labels": [5, 6])", "'labels' is not as long as 'input_ids' (expected 3");
  refused(ids + R"("labels": null)", "'labels' is not a list of whole numbers");
  refused(ids + R"("labels": [6, 7, -100])",
          "'labels[0]' is another token than 'input_ids' has there; labels are not moved by a "
          "place (expected 5, or -100: not trained, got 6)");
  refused(ids + R"("attention_mask": [1, 0, 1])", "'attention_mask' is not 1 for all tokens but");
  refused(ids + R"("attention_mask": [0, 0, 0])", "'attention_mask' is not 1");
  refused(ids + R"("attention_mask": [1, 1, 2])", "'attention_mask' is not 1");
  refused(ids + R"("labels": [5, 6, 7], "attention_mask": [1, 1, 0])",
          "'labels[2]' is of a token that 'attention_mask' leaves out (expected -100, got 7)");
  refused(ids + R"("text": "a")", "the record is of no kind");
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
