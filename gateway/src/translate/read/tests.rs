//! Bodies read and described.

use serde_json::json;

use super::*;

body! {
    /// Something to eat.
    #[example {"name": "soup"}]
    struct Meal<'a> as TestMeal {
        ..size: Size,
        /// What it is.
        name | title: String,
        /// Who eats,
        /// and when.
        guests: Option<Vec<Guest>>,
        /// Anything.
        notes: Option<Field<'a>>,
        /// The price; null takes it away.
        price: Kept<Int<1, 9>>,
    }

    /// Who eats.
    struct Guest as TestGuest {
        /// Whether at noon.
        r#type: bool,
    }

    /// How much it is.
    struct Size as TestSize {
        /// In grams.
        weight: Option<Int<0>>,
    }
}

fn fault(text: &str) -> (String, String) {
    let error = Meal::body(text.as_bytes()).unwrap_err();
    (error.param.unwrap_or_default(), error.message)
}

#[test]
fn a_body_is_read_by_its_definition_and_faults_have_their_path() {
    let text =
        r#"{"title": "soup", "guests": [{"type": true}], "weight": 3.0, "notes": 1.50, "price": null}"#;
    let mut object = Object::body(text).unwrap();
    let meal = Meal::take_from(&mut object).unwrap();
    assert_eq!((meal.name.as_str(), meal.size.weight.unwrap().0), ("soup", 3));
    assert!(meal.guests.unwrap()[0].r#type);
    assert_eq!(
        (meal.notes.unwrap().json(), meal.price.0),
        ("1.50".into(), Some(Value::Null))
    );
    assert_eq!(object.rest(), "");
    assert_eq!(fault("{}").1, "`name` is required");
    let wrong = r#"{"name": "a", "guests": [{"type": 1}]}"#;
    assert_eq!(fault(wrong).1, "`guests[0].type` must be a boolean, not a number");
    assert_eq!(fault(r#"{"name": "a", "weight": -1}"#).0, "weight");
}

#[test]
fn the_document_says_of_a_body_what_its_definition_says() {
    let meal = serde_json::to_value(<Meal<'_> as utoipa::PartialSchema>::schema()).unwrap();
    let expected = json!({
        "type": "object",
        "description": "Something to eat.",
        "required": ["name"],
        "properties": {
            "weight": {"type": ["integer", "null"], "format": "int32", "minimum": 0, "description": "In grams."},
            "name": {"type": "string", "description": "What it is."},
            "guests": {
                "type": ["array", "null"],
                "items": {"$ref": "#/components/schemas/TestGuest"},
                "description": "Who eats,\nand when."
            },
            "notes": {"description": "Anything."},
            "price": {
                "type": ["integer", "null"], "format": "int32", "minimum": 1, "maximum": 9,
                "description": "The price; null takes it away."
            }
        },
        "example": {"name": "soup"}
    });
    assert_eq!(meal, expected);
    let mut referred = Schemas::new();
    <Meal<'_> as ToSchema>::schemas(&mut referred);
    assert_eq!(referred[0].0, "TestGuest");
}
