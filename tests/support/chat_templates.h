// What the published chat templates mention, in their order and without their program: enough to be recognised.
#pragma once

#include <string_view>

namespace hadal::test {

inline constexpr std::string_view kTemplateV31 =
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ bos_token }}{{ ns.system_prompt }}"
    "{{'<｜User｜>' + m}}{{'<｜Assistant｜></think>'}}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + "
    "'<｜tool▁sep｜>' + arguments + '<｜tool▁call▁end｜>'}}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}"
    "{{'<｜tool▁output▁begin｜>' + m + '<｜tool▁output▁end｜>'}}{{'<｜Assistant｜>'}}{{'<think>'}}";

inline constexpr std::string_view kTemplateTerminus =
    "{% set ns = namespace(is_only_sys=false, is_prefix=false) %}{% if not thinking is defined %}{{ bos_token }}"
    "{{'<｜User｜>' + m}}{{'<｜Assistant｜></think>'}}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + "
    "'<｜tool▁sep｜>' + arguments + '<｜tool▁call▁end｜>'}}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}"
    "{{'<｜tool▁output▁begin｜>' + m + '<｜tool▁output▁end｜>'}}{{'<｜Assistant｜>'}}{{'<think>'}}";

inline constexpr std::string_view kTemplateV3 =
    "{{ bos_token }}{{'<｜User｜>' + m + '<｜Assistant｜>'}}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + "
    "'<｜tool▁sep｜>' + name + '\\n' + '```json' + '\\n' + arguments + '\\n' + '```' + '<｜tool▁call▁end｜>'}}"
    "{{'<｜tool▁calls▁end｜>'}}{{'<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + m + '<｜tool▁output▁end｜>'}}"
    "{{'<｜tool▁outputs▁end｜>'}}";

inline constexpr std::string_view kTemplateR10528 =
    "{{ bos_token }}{{'<｜User｜>' + m + '<｜Assistant｜>'}}{% set content = content.split('</think>')[-1] %}"
    "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n' + '```json' + '\\n' + "
    "arguments + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{{'<｜tool▁calls▁end｜>'}}"
    "{{'<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + m + '<｜tool▁output▁end｜>'}}{{'<｜tool▁outputs▁end｜>'}}";

inline constexpr std::string_view kTemplateR1 =
    "{{ bos_token }}{{'<｜User｜>' + m}}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + "
    "name "
    "+ '\\n' + '```json' + '\\n' + arguments + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{{'<｜tool▁calls▁end｜>'}}"
    "{% set content = content.split('</think>')[-1] %}{{'<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + m + "
    "'<｜tool▁output▁end｜>'}}{{'<｜tool▁outputs▁end｜>'}}{{'<｜Assistant｜><think>\\n'}}";

}  // namespace hadal::test
