// Chats to prompts by a python3 child: what comes back, and what templates cannot do. Skipped where
// python3 or jinja2 is missing.

#include "runtime/job/chat_renderer.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

namespace triphase {
namespace {

constexpr const char* kTemplate =
    "{{ bos_token }}{% for message in messages %}{% generation %}[{{ message.role }}]"
    "{{ message.content }}{% endgeneration %}{% endfor %}{{ mood }}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";
constexpr const char* kChat = R"({"messages":[{"role":"user","content":"h\u00fc"}]})";

class ChatRendererTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -I -c 'import jinja2' 2>/dev/null") != 0) {
      GTEST_SKIP() << "no python3 with jinja2";
    }
  }

  static ChatFiles files(const std::string& text) {
    return {{"chat_template.jinja", text},
            {"tokenizer_config.json", R"({"bos_token": {"content": "<s>"}})"}};
  }
  static std::string text_of(const std::variant<std::string, RecordError>& rendered) {
    const auto* error = std::get_if<RecordError>(&rendered);
    return error == nullptr ? std::get<std::string>(rendered) : error->code + " " + error->message;
  }
  static std::string render(const std::string& text, const std::string& chat = kChat) {
    ChatRenderer renderer(files(text), 1000);
    return text_of(renderer.render(chat));
  }
};

TEST_F(ChatRendererTest, RendersByTheModelsOwnTemplate) {
  ChatRenderer renderer(files(kTemplate), 1000);
  renderer.start();
  EXPECT_EQ(text_of(renderer.render(kChat)), "<s>[user]h\xC3\xBC[assistant]");
  EXPECT_EQ(text_of(renderer.render(
                R"({"messages":[{"role":"user"}],"chat_template_kwargs":{"mood":"calm"}})")),
            "<s>[user]calm[assistant]");
}

TEST_F(ChatRendererTest, TheTemplateMayStandInTheTokenizersConfig) {
  ChatRenderer renderer({{"tokenizer_config.json", R"({"chat_template": [{"name": "tool_use",
      "template": "x"}, {"name": "default", "template": "{{ messages[0].content }}"}]})"}},
                        1000);
  EXPECT_EQ(text_of(renderer.render(kChat)), "h\xC3\xBC");
}

TEST_F(ChatRendererTest, TheTimeIsTheJobs) {
  ChatRenderer renderer(files("{{ strftime_now('%Y-%m-%d %H') }}"), 1000);
  renderer.set_now(86400);
  EXPECT_EQ(text_of(renderer.render(kChat)), "1970-01-02 00");
}

TEST_F(ChatRendererTest, WhatTemplatesRefuseOrGetWrongIsAnErrorOfTheLine) {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"{{ raise_exception('no robots') }}", "no robots"},
           {"{% if %}", "chat template"},
           {"{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"},
           {"{{ messages.append(1) }}", "unsafe"},
           {"{% include 'x' %}", "no loader"},
           {"{{ 'x' * 2000 }}", "2000 bytes, expected at most 1000"},
           {"{{ 'x' * 4000000000 }}", "MemoryError"}}) {
    const std::string message = render(text);
    EXPECT_TRUE(message.starts_with("E-IN-CHAT messages: ")) << message;
    EXPECT_NE(message.find(says), std::string::npos) << message;
  }
}

TEST_F(ChatRendererTest, WhatIsWrongWithAMessageIsSaidOnce) {
  EXPECT_EQ(render(kTemplate, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})"),
            "E-IN-CHAT messages: a part of type image_url, expected text; hint: only text is read");
}

TEST_F(ChatRendererTest, ATemplateThatNeverEndsLosesItsChildAndNoOtherChat) {
  ChatRenderer renderer(files("{% if messages[0].content %}{% for a in range(99999) %}{% for b in "
                              "range(99999) %}{% endfor %}{% endfor %}{% endif %}end"),
                        1000);
  EXPECT_NE(text_of(renderer.render(kChat)).find("took too long"), std::string::npos);
  EXPECT_EQ(text_of(renderer.render(R"({"messages":[{"role":"user"}]})")), "end");
}

TEST(ChatRenderer, WithoutATemplateNothingStarts) {
  ChatRenderer renderer({{"tokenizer_config.json", "{}"}}, 1000);
  renderer.start();
  const auto rendered = renderer.render(kChat);
  EXPECT_EQ(std::get<RecordError>(rendered).code, "E-IN-CHAT");
  EXPECT_EQ(std::get<RecordError>(rendered).param, "messages");
}

TEST(ChatRenderer, WithoutPythonItSaysWhatToInstall) {
  const std::string path = std::getenv("PATH");
  ASSERT_EQ(setenv("PATH", "/nonexistent", 1), 0);
  ChatRenderer renderer({{"chat_template.jinja", "x"}}, 1000);
  try {
    renderer.start();
    ADD_FAILURE() << "it started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-MEM-PYTHON");
    EXPECT_EQ(error.role(), ErrorRole::kResources);
    EXPECT_NE(error.message().find("apt-get install python3-jinja2"), std::string::npos);
  }
  ASSERT_EQ(setenv("PATH", path.c_str(), 1), 0);
}

}  // namespace
}  // namespace triphase
