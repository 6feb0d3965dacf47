//! Chat templates: the texts of four families, against what Python's jinja2 makes of them.

use planish_engine::text::chat::{ChatTemplate, Message, Then};

fn talk() -> Vec<Message> {
    vec![Message::new("user", " Hi <there> "), Message::new("assistant", "Hello."), Message::new("user", "2+2?")]
}

#[track_caller]
fn check(template: &str, messages: &[Message], then: Then, want: &str) {
    let template = ChatTemplate::compile(template, "<bos>", "<eos>").expect("the template compiles");
    assert_eq!(template.render(messages, then).expect("it renders"), want);
}

const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

#[test]
fn smollm2() {
    let want = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
        <|im_start|>user\n Hi <there> <|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n\
        <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n";
    check(SMOLLM2, &talk(), Then::Reply, want);
    check(SMOLLM2, &[Message::new("system", "S")], Then::Nothing, "<|im_start|>system\nS<|im_end|>\n");
}

/// The shape of Qwen 2.5's template: trimmed blocks, `tojson`, a namespace.
const QWEN: &str = "{%- if tools %}\n    {{- tools | tojson }}\n{%- else %}\n    {%- if messages[0]['role'] == 'system' %}\n\
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n    {%- else %}\n\
        {{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}\n    {%- endif %}\n{%- endif %}\n\
{%- for message in messages %}\n    {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or \
(message.role == \"assistant\" and not message.tool_calls) %}\n\
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n\
{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n";

#[test]
fn qwen() {
    let want = "<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>user\n Hi <there> <|im_end|>\n\
        <|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n";
    check(QWEN, &talk(), Then::Reply, want);
}

/// The shape of Gemma 3's template: alternation is enforced, contents are trimmed, the assistant is `model`.
const GEMMA: &str = "{{ bos_token }}\n{%- for message in messages -%}\n    \
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}\n        \
{{ raise_exception(\"Conversation roles must alternate user/assistant\") }}\n    {%- endif -%}\n    \
{%- if (message['role'] == 'assistant') -%}\n        {%- set role = \"model\" -%}\n    {%- else -%}\n        \
{%- set role = message['role'] -%}\n    {%- endif -%}\n    {{ '<start_of_turn>' + role + '\n' }}\n    \
{%- if message['content'] is string -%}\n        {{ message['content'] | trim }}\n    {%- endif -%}\n    \
{{ '<end_of_turn>\n' }}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n    {{'<start_of_turn>model\n'}}\n{%- endif -%}\n";

#[test]
fn gemma() {
    let want = "<bos><start_of_turn>user\nHi <there><end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n\
        <start_of_turn>user\n2+2?<end_of_turn>\n<start_of_turn>model\n";
    check(GEMMA, &talk(), Then::Reply, want);
    let template = ChatTemplate::compile(GEMMA, "", "").expect("the template compiles");
    let error = template.render(&talk()[1..], Then::Reply).expect_err("it must alternate").to_string();
    assert!(error.contains("must alternate"), "{error}");
}

/// The shape of Llama 3's template, with methods of Python strings and lists.
const LLAMA3: &str = "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = \
'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'].strip() + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

#[test]
fn llama3() {
    let want = "<bos><|start_header_id|>user<|end_header_id|>\n\nHi <there><|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    check(LLAMA3, &talk(), Then::Reply, want);
}

#[test]
fn json_is_spelled_as_python_spells_it() {
    let object = "{{ {'a': [1, 'x<y>&\"'], 'b': none} | tojson }}";
    check(object, &[], Then::Nothing, "{\"a\": [1, \"x<y>&\\\"\"], \"b\": null}");
    check("{{ {'a': [1]} | tojson(indent=2) }}", &[], Then::Nothing, "{\n  \"a\": [\n    1\n  ]\n}");
}

#[test]
fn blocks_are_trimmed() {
    check("a\n  {% if true %}\nb\n  {% endif %}\nc\n", &[], Then::Nothing, "a\nb\nc");
}

#[test]
fn the_date_is_there() {
    let template = ChatTemplate::compile("{{ strftime_now('%Y') }}", "", "").expect("it compiles");
    let year: u32 = template.render(&[], Then::Nothing).expect("it renders").parse().expect("a year");
    assert!(year >= 2024);
}
