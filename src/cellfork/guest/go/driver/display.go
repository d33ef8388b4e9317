package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"reflect"
	"strconv"

	"github.com/traefik/yaegi/interp"
)

// maxText bounds the text of a result; the kernel cuts further where the sandbox's limits say so.
const maxText = 1 << 20

// show displays the value of a cell's last expression.
func (s *session) show(value reflect.Value) {
	if !value.IsValid() || value.Type() == reflect.TypeOf((*interface{})(nil)) || !value.CanInterface() {
		return // a call that returns nothing leaves nothing
	}
	content := value.Interface()
	data := map[string][]byte{"text/plain": []byte(textOf(content))}
	if picture, ok := content.(image.Image); ok {
		var buffer bytes.Buffer
		if png.Encode(&buffer, picture) == nil {
			data["image/png"] = buffer.Bytes()
			data["text/plain"] = []byte(fmt.Sprintf("%T %v", content, picture.Bounds()))
		}
	}
	s.answers.display(data, true)
}

func textOf(content interface{}) (text string) {
	defer func() {
		if thrown := recover(); thrown != nil {
			text = fmt.Sprintf("(its text could not be made: %v)", thrown)
		}
	}()
	switch known := content.(type) {
	case nil:
		return "<nil>"
	case string:
		text = strconv.Quote(known)
	case error:
		text = known.Error()
	case fmt.Stringer:
		text = known.String()
	default:
		text = fmt.Sprintf("%+v", content)
	}
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	return text
}

// displays returns the packages through which a cell shows more than text: "cellfork", and the calls of the same names
// of GoNB's gonbui, so that notebooks written for that find them.
func displays(answers *answers) interp.Exports {
	text := func(mime string) func(string) {
		return func(content string) { answers.display(map[string][]byte{mime: []byte(content)}, false) }
	}
	raw := func(mime string) func([]byte) {
		return func(content []byte) { answers.display(map[string][]byte{mime: content}, false) }
	}
	picture := func(content image.Image) error {
		var buffer bytes.Buffer
		if err := png.Encode(&buffer, content); err != nil {
			return err
		}
		raw("image/png")(buffer.Bytes())
		return nil
	}
	asJSON := func(content interface{}) error {
		encoded, err := json.Marshal(content)
		if err == nil {
			raw("application/json")(encoded)
		}
		return err
	}
	return interp.Exports{
		"cellfork/cellfork": {
			"HTML":     reflect.ValueOf(text("text/html")),
			"Markdown": reflect.ValueOf(text("text/markdown")),
			"Latex":    reflect.ValueOf(text("text/latex")),
			"SVG":      reflect.ValueOf(text("image/svg+xml")),
			"PNG":      reflect.ValueOf(raw("image/png")),
			"JPEG":     reflect.ValueOf(raw("image/jpeg")),
			"Image":    reflect.ValueOf(picture),
			"JSON":     reflect.ValueOf(asJSON),
			"Display":  reflect.ValueOf(func(mime, content string) { text(mime)(content) }),
		},
		"github.com/janpfeifer/gonb/gonbui/gonbui": {
			"DisplayHTML":     reflect.ValueOf(text("text/html")),
			"DisplayHtml":     reflect.ValueOf(text("text/html")),
			"DisplayMarkdown": reflect.ValueOf(text("text/markdown")),
			"DisplaySVG":      reflect.ValueOf(text("image/svg+xml")),
			"DisplayPNG":      reflect.ValueOf(raw("image/png")),
			"DisplayPng":      reflect.ValueOf(raw("image/png")),
			"DisplayImage":    reflect.ValueOf(picture),
		},
	}
}
