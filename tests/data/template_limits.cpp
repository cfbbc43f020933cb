// What a chat template may cost: each of these is an error, or has its text, within the limits.
#include <pthread.h>
#include <sys/resource.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.data;

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;
using Catch::StartsWith;
using data::ChatTemplate;

namespace {

// As servers and other C libraries give; instrumented frames are larger.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t small_stack = std::size_t{4} << 20;
#elif defined(__has_feature)
constexpr std::size_t small_stack =
    std::size_t{__has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ? 4096 : 512}
    << 10;
#else
constexpr std::size_t small_stack = std::size_t{512} << 10;
#endif

/// Calls `work` in a thread with a small stack.
void with_small_stack(std::function<void()> work) {
  pthread_attr_t attributes{};
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, small_stack);
  pthread_t thread{};
  const auto start = [](void* called) -> void* {
    (*static_cast<std::function<void()>*>(called))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, start, &work) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

std::string rendered(const std::string& text) {
  std::string out;
  with_small_stack([&] {
    try {
      out = ChatTemplate(text, "t.jinja").render(R"({"messages": []})", false);
    } catch (const Error& error) {
      out = error.what();
      if (error.kind() != ErrorKind::input) {
        out = "the error is not of the input: " + out;
      }
    }
  });
  return out;
}

std::string times(int count, const std::string& part) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += part;
  }
  return all;
}

/// `{{ expression }}` with a namespace whose member `a` is the list [0], and `t` the text "x".
std::string grown(int turns, const std::string& step, const std::string& end) {
  return "{% set ns = namespace(a=[0], b=[0], t='x') %}{% for i in range(" + std::to_string(turns) +
         ") %}{% set " + step + " %}{% endfor %}{{ " + end + " }}";
}

long peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss >> 10;
}

const std::string steps = "t.jinja: line 1: the template takes more than 20000000 steps; use a";
const std::string memory = "t.jinja: line 1: the values of the template take more than 64 MiB";

}  // namespace

TEST_CASE("what repeats takes steps, whatever repeats it") {
  const std::vector<std::string> endless = {
      "{% macro m(n) %}{% if n > 0 %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(45) }}",
      "{% for i in range(99999) %}{% for j in range(9999) if false %}{% endfor %}{% endfor %}",
      "{% for i in range(99999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
      "{% set x = range(99999) | list %}{% for i in x %}{{ i in x }}{% endfor %}",
      "{{ range(99999) | unique | list }}",
      grown(60, "ns.a = [ns.a, ns.a]", "ns.a | string"),
      grown(60, "ns.a = [ns.a, ns.a]", "ns.a | tojson"),
      "{% set ns = namespace(a=[0], b=[0]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
      "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
      "{% set s = 'a' * 9999999 %}{% for i in range(99999) %}{{ s.find('b') }}{% endfor %}",
      "{% set s = 'a' * 9999999 %}{% for i in range(99999) %}{{ s | length }}{% endfor %}"};
  for (const std::string& text : endless) {
    INFO(text);
    CHECK_THAT(rendered(text), StartsWith(steps));
  }
  // The time of a search does not depend on what is searched for.
  CHECK(rendered("{% set a = 'a' * 20000000 %}{% set b = 'b' ~ 'a' * 9000000 %}{{ b in a }}"
                 "{{ a.find(b) }}{{ a.rfind(b) }}{{ a.split(b) | length }}") == "False-1-11");
}

TEST_CASE("to find many answers by rendering again and again is bounded") {
  std::string messages;
  for (int i = 0; i < 6000; ++i) {
    messages += R"({"role": "user", "content": ""}, {"role": "assistant", "content": ""},)";
  }
  messages.back() = ']';
  const ChatTemplate chat("{% for m in messages %}{{ m.role }}{% endfor %}", "t.jinja");
  CHECK_THAT(error_of([&] { chat.render_with_answers(R"({"messages": [)" + messages + "}"); }),
             Contains("t.jinja: to find the 6000 answers of a conversation takes more than "
                      "200000000 steps; mark the answers"));
}

TEST_CASE("what grows takes memory, and it is given back") {
  const long before = peak_megabytes();
  const std::vector<std::string> large = {"{{ 'abcdefgh' * 100000000 }}",
                                          "{{ [1] * 100000000 }}",
                                          "{{ 'a' * 9223372036854775807 }}",
                                          grown(36, "ns.a = ns.a + ns.a", "1"),
                                          grown(36, "ns.t = ns.t ~ ns.t", "1"),
                                          grown(36, "ns.t = ns.t + ns.t", "1"),
                                          "{{ ('a' * 60000000) | replace('a', 'b' * 100000) }}",
                                          "{{ ('a' * 1000000) | replace('', 'b' * 100000) }}",
                                          "{{ range(99999) | join('x' * 6000000) }}",
                                          "{{ range(99999) | map('string') | join('x' * 60000) }}",
                                          "{{ ('\n' * 1000000) | indent('x' * 1000, true, true) }}",
                                          "{{ [1] | batch(9999999999, 'x') | list }}",
                                          "{{ ('a ' * 9999999).split() }}",
                                          "{% for c in 'a' * 60000000 %}{% endfor %}",
                                          "{{ [[1]] | tojson(indent='x' * 60000000) }}"};
  for (const std::string& text : large) {
    INFO(text);
    CHECK_THAT(rendered(text), Contains("the values of the template take more than 64 MiB"));
  }
  CHECK(peak_megabytes() - before < 600);
  CHECK_THAT(rendered("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}"),
             StartsWith("t.jinja: line 1: the text is too long (expected at most 64 MiB)"));
  CHECK(rendered("{% set ns = namespace(n=0) %}{% for i in range(10) %}{% set t = 'x' * 9999999 %}"
                 "{% set ns.n = ns.n + (t | length) %}{% endfor %}{{ ns.n }}") == "99999990");
}

TEST_CASE("chains are of any length, and what is nested is limited") {
  CHECK(rendered("{{ " + times(20000, "not ") + "true }}") == "True");
  CHECK(rendered("{{ 1" + times(20000, "+1") + " }}") == "20001");
  CHECK(rendered("{{ " + times(20000, "-") + "1 }}") == "1");
  CHECK(rendered("{{ 'a'" + times(20000, "|upper") + " }}") == "A");
  CHECK(rendered("{{ 'a'" + times(20000, ".upper()") + " }}") == "A");
  CHECK(rendered("{{ false" + times(20000, " or false") + " }}") == "False");
  CHECK(rendered("{{ 1" + times(20000, " < 2 == 2") + " }}") == "False");
  CHECK_THAT(rendered("{{ " + times(200'000, "[],") + " }}"), Contains("too many expressions"));
  const std::string nested = "nested too deeply (expected at most";
  for (const std::string& text : std::vector<std::string>{
           "{{ " + times(5000, "(") + "1" + times(5000, ")") + " }}",
           "{{ " + times(5000, "[") + "1" + times(5000, "]") + " }}",
           "{{ " + times(5000, "1 if 0 else ") + "2 }}", times(500, "{% if x %}"),
           "{{ x" + times(5000, "[x") + times(5000, "]") + " }}",
           std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
           grown(5000, "ns.a = [ns.a]", "1"), grown(5000, "ns.a = {'a': ns.a}", "1"),
           "{% set ns = namespace(a=[]) %}{% for i in range(5000) %}{% set ns.a = [ns.a].count %}"
           "{% endfor %}"}) {
    INFO(text.substr(0, 60));
    CHECK_THAT(rendered(text), Contains(nested));
  }
  // A namespace may be in itself.
  CHECK(
      rendered("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns.a.a.a is defined }}"
               "{% for i in range(50000) %}{% set ns.b = namespace(c=ns.b, d=ns) %}{% endfor %}") ==
      "True");
}

TEST_CASE("whole numbers never wrap") {
  const std::string least = "(-9223372036854775807 - 1)";
  for (const std::string& text :
       {least + " // -1", "-" + least, least + " | abs", least + " * -1", least + " - 1",
        std::string("9223372036854775807 + 1"), std::string("3 ** 9223372036854775807"),
        std::string("range(9223372036854775800, 9223372036854775807, 3) | sum")}) {
    INFO(text);
    CHECK_THAT(rendered("{{ " + text + " }}"), Contains("too large"));
  }
  CHECK(rendered("{{ " + least + " % -1 }} {{ " + least + " is divisibleby(-1) }} {{ (-1) ** " +
                 "9223372036854775807 }} {{ 'abc'[::" + least + "] }} {{ [1, 2][" + least +
                 ":9223372036854775807:9223372036854775807] }}") == "0 True -1 c [1]");
}

TEST_CASE("an error is one line of UTF-8, whatever the template says") {
  const std::string error =
      rendered("{{ raise_exception('a\\nb\\x1b[31m' ~ 'é' * 2000 ~ '\\u2028') }}");
  CHECK_THAT(error, StartsWith("t.jinja: line 1: the template refuses it: a\\nb?[31m"));
  CHECK(error.size() < 1100);
  CHECK_THAT(error_of([] { ChatTemplate("{{ 'a\xFF' }}", "t.jinja"); }),
             Contains("t.jinja: byte 5 is not UTF-8"));
  CHECK_THAT(error_of([] { ChatTemplate("{{ \xC3\xA9 }}", "t.jinja"); }),
             Contains("the character '\xC3\xA9'"));
  CHECK_THAT(error_of([] { ChatTemplate(std::string(2 << 20, 'a'), "t.jinja"); }),
             Contains("the template is too long"));
}
