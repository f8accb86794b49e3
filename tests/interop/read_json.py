"""Reads an answer over REST-JSON with protobuf's own parser, and holds it against the same answer in binary.

    read_json.py DESCRIPTORS.binpb.gz ANSWER.json ANSWER.binpb

Ends with status 0 and a count if both say the same, in every resource and every Any within.
"""

import gzip
import json
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

RESPONSE = "envoy.service.discovery.v3.DiscoveryResponse"


def load(path):
    files = descriptor_pb2.FileDescriptorSet.FromString(gzip.open(path).read()).file
    pool, by_name, done = descriptor_pool.DescriptorPool(), {file.name: file for file in files}, set()

    def add(name):
        if name not in done:
            done.add(name)
            for dependency in by_name[name].dependency:
                add(dependency)
            pool.Add(by_name[name])

    for name in by_name:
        add(name)
    return pool


def unpack(pool, any_message):
    descriptor = pool.FindMessageTypeByName(any_message.type_url.rsplit("/", 1)[1])
    return message_factory.GetMessageClass(descriptor).FromString(any_message.value)


def plain(pool, message):
    """The message as plain values, every Any taken apart: their bytes may differ where their meaning does not."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Any" and message.type_url:
        return {"any": message.type_url, "of": plain(pool, unpack(pool, message))}

    def value(field, item):
        if field.message_type is not None:
            return plain(pool, item)
        return repr(item)

    fields = {}
    for field, item in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"]
            fields[field.name] = {repr(key): value(kind, item[key]) for key in item}
        elif field.is_repeated:
            fields[field.name] = [value(field, one) for one in item]
        else:
            fields[field.name] = value(field, item)
    return fields


def main(descriptors, text, binary):
    pool = load(descriptors)
    response = message_factory.GetMessageClass(pool.FindMessageTypeByName(RESPONSE))
    answer = json_format.Parse(open(text).read(), response(), descriptor_pool=pool)
    expected = response.FromString(open(binary, "rb").read())
    assert answer.type_url == expected.type_url, answer.type_url
    found = {json.dumps(plain(pool, one), sort_keys=True) for one in answer.resources}
    wanted = {json.dumps(plain(pool, one), sort_keys=True) for one in expected.resources}
    for missing in wanted ^ found:
        print("differs:", missing, file=sys.stderr)
    assert found == wanted and len(answer.resources) == len(expected.resources)
    print(len(found))


main(*sys.argv[1:])
