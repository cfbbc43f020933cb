// Records as other data sets have them.
#include <memory>
#include <string>
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
using data::RecordForms;

namespace {

Json standard(const Json& record, const data::RecordColumns& columns = {}) {
  return Json::parse(RecordForms(columns).standard(record.dump()));
}

std::string refusal(const Json& record, const data::RecordColumns& columns = {}) {
  return error_of([&] { static_cast<void>(standard(record, columns)); });
}

Json said(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}
Json from(const std::string& speaker, const std::string& value) {
  return {{"from", speaker}, {"value", value}};
}

const Json dialog = {from("human", "one"), from("gpt", "two")};
const Json messages = {said("user", "one"), said("assistant", "two")};

}  // namespace

TEST_CASE("records of ShareGPT are messages") {
  CHECK(standard({{"id", "x"}, {"conversations", dialog}}) ==
        Json({{"id", "x"}, {"messages", messages}}));
  // Marks and other members of messages stay, and so do lists that are messages already.
  Json marked = dialog;
  marked[1]["weight"] = 0;
  CHECK(standard({{"conversations", marked}})["messages"][1] ==
        Json({{"role", "assistant"}, {"content", "two"}, {"weight", 0}}));
  CHECK(standard({{"conversations", messages}}) == Json({{"messages", messages}}));
  for (const char* const speaker : {"chatgpt", "bing", "bard", "model", "assistant"}) {
    CHECK(standard({{"conversations", {from("user", "one"), from(speaker, "two")}}})["messages"] ==
          messages);
  }
  CHECK(standard({{"conversations", Json::array({from("observation", "3")})}})["messages"][0] ==
        said("tool", "3"));
  CHECK(standard({{"conversations", dialog}, {"system", "be"}})["messages"] ==
        Json({said("system", "be"), messages[0], messages[1]}));
  CHECK(standard({{"conversations", dialog}, {"system", ""}})["messages"] == messages);
  CHECK(standard({{"conversations", Json::array({from("human", "one")})},
                  {"chosen", from("gpt", "two")},
                  {"rejected", from("gpt", "three")}}) ==
        Json({{"prompt", Json::array({messages[0]})},
              {"chosen", Json::array({messages[1]})},
              {"rejected", Json::array({said("assistant", "three")})}}));
}

TEST_CASE("records of Alpaca are a question and its answer") {
  CHECK(standard({{"instruction", "add"}, {"input", "1 2"}, {"output", "3"}}) ==
        Json({{"messages", {said("user", "add\n\n1 2"), said("assistant", "3")}}}));
  for (const Json& input : {Json(""), Json(" \n"), Json()}) {
    CHECK(standard({{"instruction", "one"}, {"input", input}, {"output", "two"}}) ==
          Json({{"messages", messages}}));
  }
  CHECK(standard({{"instruction", "three"},
                  {"output", "four"},
                  {"system", "be"},
                  {"history", Json::array({Json::array({"one", "two"})})}}) ==
        Json({{"messages",
               {said("system", "be"), messages[0], messages[1], said("user", "three"),
                said("assistant", "four")}}}));
  CHECK(standard({{"instruction", "one"}, {"chosen", "two"}, {"rejected", "three"}}) ==
        Json({{"prompt", Json::array({messages[0]})},
              {"chosen", Json::array({messages[1]})},
              {"rejected", Json::array({said("assistant", "three")})}}));
}

TEST_CASE("columns name members of records and of messages") {
  const Json own = Json::array(
      {Json{{"speaker", "human"}, {"words", "one"}}, Json{{"speaker", "gpt"}, {"words", "two"}}});
  CHECK(standard({{"dialog", own}},
                 {{"messages", "dialog"}, {"role", "speaker"}, {"content", "words"}}) ==
        Json({{"messages", messages}}));
  CHECK(standard({{"q", "1"}, {"a", "2"}, {"n", 3}}, {{"prompt", "q"}, {"completion", "a"}}) ==
        Json({{"prompt", "1"}, {"completion", "2"}, {"n", 3}}));
  // Two that change places, and one whose name is taken: that one is read by nothing, and counted.
  CHECK(standard({{"prompt", "1"}, {"completion", "2"}},
                 {{"prompt", "completion"}, {"completion", "prompt"}}) ==
        Json({{"prompt", "2"}, {"completion", "1"}}));
  CHECK(standard({{"text", "raw"}, {"clean", "c"}}, {{"text", "clean"}}) ==
        Json({{"text", "c"}, {"text (another member)", "raw"}}));
  CHECK(standard({{"ask", "one"}, {"reply", "two"}},
                 {{"instruction", "ask"}, {"output", "reply"}, {"input", "more"}}) ==
        Json({{"messages", messages}}));
  CHECK(standard({{"turns", dialog}}, {{"conversations", "turns"}}) ==
        Json({{"messages", messages}}));
}

TEST_CASE("columns of tokens: not every record has labels and a mask") {
  const data::RecordColumns columns = {
      {"input_ids", "tokens"}, {"labels", "wanted"}, {"attention_mask", "mask"}};
  CHECK(standard({{"tokens", {5, 6}}, {"wanted", {5, -100}}, {"mask", {1, 1}}}, columns) ==
        Json({{"input_ids", {5, 6}}, {"labels", {5, -100}}, {"attention_mask", {1, 1}}}));
  CHECK(standard({{"tokens", {5, 6}}}, columns) == Json({{"input_ids", {5, 6}}}));
  CHECK_THAT(refusal({{"wanted", {5, 6}}}, columns), Contains("the column 'tokens' is missing"));
  // Classes of words cannot be absent.
  CHECK_THAT(refusal({{"w", {"a"}}}, {{"words", "w"}, {"labels", "l"}}),
             Contains("the column 'l' is missing"));
}

TEST_CASE("what has this library's members, and what is no record, stays as it is") {
  for (const char* const text :
       {R"({"prompt": "a \"conversations\" b", "completion": 1.10})", "not \"conversations\"", "",
        R"({"messages": [], "x": 10000000000000000000001})", R"(["instruction"])"}) {
    CHECK(RecordForms().standard(text) == text);
  }
  // Numbers keep their digits.
  CHECK(RecordForms().standard(R"({"conversations":[{"from":"human","value":"a","n":1.10}]})") ==
        R"({"messages":[{"content":"a","n":1.10,"role":"user"}]})");
}

TEST_CASE("records of other forms that are not whole are refused by their place") {
  CHECK_THAT(refusal({{"conversations", Json::array()}}),
             Contains("must be a list of messages that is not empty"));
  CHECK_THAT(refusal({{"conversations", Json::array({from("human", "a"), Json{{"from", "gpt"}}})}}),
             Contains("message 2 has no 'value'"));
  CHECK_THAT(refusal({{"conversations", Json::array({from("human", "a"), 3})}}),
             Contains("message 2 has no 'from'"));
  CHECK_THAT(refusal({{"conversations", Json::array({Json{{"from", 3}, {"value", "a"}}})}}),
             Contains("'from' of message 1 must be a text"));
  CHECK_THAT(refusal({{"conversations", Json::array({from("function_call", "{}")})}}),
             Contains("write the call as 'tool_calls'"));
  CHECK_THAT(
      refusal({{"conversations", {from("system", "a"), from("human", "b")}}, {"system", "c"}}),
      Contains("beside a first message of the system"));
  CHECK_THAT(refusal({{"conversations", dialog}, {"text", "one two"}}),
             Contains("'text' beside 'conversations'"));
  CHECK_THAT(refusal({{"instruction", "a"}, {"output", "b"}, {"text", "c"}}),
             Contains("say which is trained"));
  CHECK_THAT(refusal({{"instruction", " "}, {"output", "b"}}), Contains("'instruction' is empty"));
  CHECK_THAT(refusal({{"instruction", "a"}, {"input", 3}, {"output", "b"}}),
             Contains("'input' must be a text"));
  CHECK_THAT(
      refusal(
          {{"instruction", "a"}, {"output", "b"}, {"history", Json::array({Json::array({"c"})})}}),
      Contains("'history' must be"));
  CHECK_THAT(refusal({{"instruction", "a"}, {"output", "b"}, {"history", "c"}}),
             Contains("'history' must be"));
  CHECK_THAT(refusal({{"text", "a"}}, {{"text", "body"}}),
             Contains("the column 'body' is missing"));
  CHECK_THAT(error_of([] { RecordForms({{"texts", "a"}}); }),
             Contains("'texts' is no member of a record"));
  CHECK_THAT(error_of([] { RecordForms({{"text", "a"}, {"label", "a"}}); }),
             Contains("two members are called 'a'"));
  // Where columns say which, it is read.
  CHECK(standard({{"instruction", "one"}, {"output", "two"}, {"text", "c"}},
                 {{"instruction", "instruction"}})["messages"] == messages);
  CHECK(standard({{"instruction", "one"}, {"output", "two"}, {"text", "c"}},
                 {{"text", "text"}})["text"] == "c");
}

TEST_CASE("documents of other forms have the tokens of their messages") {
  const Folder folder;
  const auto written = [&](const char* name, const Json& records) {
    std::string lines;
    for (const Json& record : records) {
      lines += record.dump() + "\n";
    }
    return folder.write(name, lines);
  };
  const auto maker = std::make_shared<const data::ExampleMaker>(
      small_tokenizer(), chat_template("chatml.jinja"), data::TrainOn::answers);
  const auto opened = [&](const std::string& file, const data::RecordColumns& columns) {
    return data::Documents(std::vector{file}, maker,
                           {.longest = 64, .forms = RecordForms(columns)});
  };
  const auto plain =
      opened(written("plain.jsonl", {{{"messages", messages}}, {{"messages", messages}}}), {});
  const auto others = opened(written("others.jsonl", {{{"conversations", dialog}, {"id", 1}},
                                                      {{"instruction", "one"}, {"output", "two"}}}),
                             {});
  const std::string named = written("named.jsonl", {{{"d", messages}}, {{"d", messages}}});
  const auto by_name = opened(named, {{"messages", "d"}});
  REQUIRE(others.size() == 2);
  for (std::int64_t i = 0; i < 2; ++i) {
    for (const auto* const own : {&others, &by_name}) {
      CHECK(own->read(i).ids == plain.read(i).ids);
      CHECK(own->read(i).trained == plain.read(i).trained);
    }
  }
  CHECK(others.counts().unread == std::map<std::string, std::int64_t>{{"id", 1}});
  CHECK(others.content_hash() != by_name.content_hash());
  CHECK_THAT(error_of([&] { opened(named, {}); }),
             Contains("named.jsonl:1: the record is of no kind"));
  CHECK_THAT(error_of([&] { opened(named, {{"messages", "e"}}); }),
             Contains("named.jsonl:2: the column 'e' is missing"));
}
